"""Rules of the contract that need the runtime and a store together. docs/notes/rules.md lists all rules."""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable
from datetime import timedelta
from typing import Any

import anyio
import pytest
from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession

from tests.hosting.test_host import CLASSES, declare, eventually, hosting, owners, watchers
from tests.store.seeding import count_events, events_in, until
from tests.unit.streams.streams import Acking, Producer, Upstream
from triggerer.abc import SharedStreamProducer, TriggerEvent
from triggerer.domain.events import Fence
from triggerer.errors import OutcomeUnknown
from triggerer.plugins import trigger_digest
from triggerer.store.database.script import Row, Step
from triggerer.store.database.transactions import Database, database_now
from triggerer.store.database.wakeups.signals import Signal, announce
from triggerer.store.events.batch_statement import RecordEvents
from triggerer.store.schema.models import Stream, Trigger, Watcher
from triggerer.store.watchers.hosting import WatcherState, write_states


class UnspeakableError(Exception):
    """An error whose text cannot be made, as when a library formats the text too late."""

    def __str__(self) -> str:
        raise KeyError("what")

    __repr__ = __str__


class Unruly(Acking):
    """A trigger that raises, or returns a wrong value, at the place that `where` names."""

    def __init__(self, upstream: str, name: str = "one", where: str = "") -> None:
        if where == "constructor":
            raise ValueError(where)
        super().__init__(upstream, name)
        self.where = where

    def shared_stream_key(self) -> Hashable:
        if self.where == "key":
            raise ValueError(self.where)
        if self.where == "key is not hashable":
            return [self.where]  # type: ignore[return-value]
        # The siblings, of the class `Acking`, have an equal key, so all share one stream.
        return ("Acking", self.upstream)

    def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> Any:
        if self.where == "filter is no generator":
            return None
        return self._filter(shared_stream)

    async def _filter(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for event in shared_stream:
            if self.where == "filter":
                raise ValueError(self.where)
            if self.where == "error is no Unicode":
                # A file name on a disk may contain such bytes.
                raise ValueError(b"\xff".decode(errors="surrogateescape"))
            if self.where == "error cannot be shown":
                raise UnspeakableError
            if self.where == "payload":
                yield TriggerEvent({"value": object()})
            yield "nonsense" if self.where == "event" else TriggerEvent({"value": event})

    async def cleanup(self) -> None:
        if self.where == "cleanup":
            raise ValueError(self.where)


class UnrulyProducer(Producer):
    def __init__(self, upstream: Upstream, where: str) -> None:
        super().__init__(upstream)
        self.where = where

    def get_advance_lane(self, broker_payload: Any) -> Hashable:
        if self.where == "lane":
            raise ValueError(self.where)
        return super().get_advance_lane(broker_payload)

    def get_idempotency_key(self, broker_payload: Any) -> str | None:
        if self.where == "idempotency key":
            raise ValueError(self.where)
        return super().get_idempotency_key(broker_payload)


class UnrulyOpener(Unruly):
    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        if kwargs["where"] == "producer":
            raise ValueError(kwargs["where"])
        return UnrulyProducer(Upstream.known[kwargs["upstream"]], kwargs["where"])


CLASSES |= {"Unruly": Unruly, "UnrulyOpener": UnrulyOpener}


# Rule 9


@pytest.mark.rule(
    "9: a deleted watcher acks its open message, and fails every message that it has not pulled",
    "9: a change of a watcher's arguments resolves no message",
)
@pytest.mark.parametrize(
    ("how", "outcome"),
    [
        ("deleted", (2, 0, 0)),
        ("changed", (1, 1, 0)),
        ("one deleted, one changed", (1, 1, 0)),
        ("one stays, one changed", (1, 1, 0)),
    ],
)
async def test_the_open_message_is_accepted_if_the_watcher_is_deleted_and_fails_if_it_changed(
    database: Database, upstream: Upstream, how: str, outcome: tuple[int, int, int]
) -> None:
    is_open = anyio.Event()

    async def hold(event: Any) -> None:
        is_open.set()
        await anyio.sleep_forever()

    upstream.on_filter["goes"] = hold
    await declare(database, "stays", upstream)
    await declare(database, "goes", upstream)
    if how.startswith("one "):
        # Let one trigger serve the watchers "goes" and "too".
        await declare(database, "too", upstream)
        async with database.transaction() as session:
            of_goes, of_too = await session.scalars(
                select(Watcher).where(Watcher.asset_id > 1).order_by(Watcher.id)
            )
            of_too.trigger_id = of_goes.trigger_id
    async with hosting(database):
        upstream.put("open")
        await is_open.wait()
        async with database.transaction() as session:
            watcher = await session.get_one(Watcher, 2)
            if how == "changed":
                watcher.trigger_id = await another_trigger(session)
            elif how != "one stays, one changed":
                await session.delete(watcher)
            if how.startswith("one "):
                (await session.get_one(Watcher, 3)).trigger_id = await another_trigger(session)
            announce(session, Signal.STREAMS_CHANGED)
        await until(lambda: bool(upstream.outcomes()))
        assert upstream.outcomes() == {"open": outcome}


async def another_trigger(session: AsyncSession) -> int:
    """Declare a trigger with new arguments."""
    first = await session.get_one(Trigger, 1)
    kwargs = {**first.kwargs, "name": "another"}
    trigger = Trigger(
        digest=trigger_digest(first.classpath, kwargs),
        classpath=first.classpath,
        kwargs=kwargs,
        stream_digest=first.stream_digest,
    )
    session.add(trigger)
    await session.flush()
    return trigger.id


# Rule 11: a trigger that raises harms nobody else


@pytest.mark.rule(
    "11: an error of one trigger's class, constructor, key, filter or payload harms no other trigger",
    "one trigger's constructor raises, and the service crashes at every start",
)
@pytest.mark.parametrize(
    ("where", "outcome"),
    [
        ("loading", (1, 1, 0)),
        ("constructor", (1, 1, 0)),
        ("key", (1, 1, 0)),
        ("key is not hashable", (1, 1, 0)),
        ("filter", (1, 1, 0)),
        ("error is no Unicode", (1, 1, 0)),
        ("error cannot be shown", (1, 1, 0)),
        ("filter is no generator", (1, 1, 0)),
        ("event", (1, 1, 0)),
        ("payload", (1, 1, 0)),
    ],
)
async def test_a_trigger_that_raises_harms_no_sibling_and_no_neighbour(
    database: Database, upstream: Upstream, where: str, outcome: tuple[int, int, int]
) -> None:
    elsewhere = Upstream(f"{upstream.name}, elsewhere")
    classpath = "Absent" if where == "loading" else "Unruly"
    await declare(database, "unruly", upstream, classpath=classpath, where=where)
    await declare(database, "sibling", upstream)
    await declare(database, "neighbour", elsewhere, stream="other")
    async with hosting(database):
        upstream.put(1)
        elsewhere.put(1)
        await until(lambda: bool(upstream.outcomes() and elsewhere.outcomes()))
        assert upstream.outcomes() == {1: outcome}
        assert elsewhere.outcomes() == {1: (1, 0, 0)}

        async def is_shown() -> bool:
            # Publish again, because the trigger is restarted soon, and then fails only at its next message.
            upstream.put(2)
            shown = await watchers(database)
            fine = shown["sibling"][0] == shown["neighbour"][0] == "running"
            # If the store refuses an event, only the event fails, and the trigger continues.
            return fine and (where == "payload" or shown["unruly"][0] == "failing")

        await eventually(is_shown)
        assert len(upstream.producers) == len(elsewhere.producers) == 1


@pytest.mark.rule(
    "11: an error of one trigger's class, constructor, key, filter or payload harms no other trigger"
)
async def test_a_cleanup_that_raises_harms_nobody(database: Database, upstream: Upstream) -> None:
    await declare(database, "unruly", upstream, classpath="Unruly", where="cleanup")
    await declare(database, "sibling", upstream)
    async with hosting(database):
        upstream.put(1)
        await until(lambda: bool(upstream.outcomes()))
    assert upstream.outcomes() == {1: (2, 0, 0)}
    assert await owners(database) == {"stream": None}


@pytest.mark.rule("11: an error of one producer harms no other stream")
@pytest.mark.parametrize("where", ["producer", "lane", "idempotency key"])
async def test_a_stream_that_raises_is_shown_and_harms_no_other_stream(
    database: Database, upstream: Upstream, where: str
) -> None:
    elsewhere = Upstream(f"{upstream.name}, elsewhere")
    await declare(database, "unruly", upstream, classpath="UnrulyOpener", where=where)
    await declare(database, "neighbour", elsewhere, stream="other")
    async with hosting(database):
        upstream.put(1)
        elsewhere.put(1)

        async def is_shown() -> bool:
            # Publish again, because the stream is restarted soon, and then fails only at its next message.
            upstream.put(2)
            state, error, _ = (await watchers(database))["unruly"]
            return state == "failing" and where in (error or "")

        await eventually(is_shown)
        await until(lambda: elsewhere.outcomes() == {1: (1, 0, 0)})
        assert len(elsewhere.producers) == 1
        # No message of this stream counts as accepted.
        assert set(upstream.outcomes().values()) <= {(0, 1, 0)}
        assert await count_events(database) == 1


# Rule 12


@pytest.mark.rule("12: the broker is advanced only after the events are committed")
async def test_the_broker_is_advanced_only_past_what_another_connection_can_read(
    database: Database, upstream: Upstream
) -> None:
    stored_before_advance: list[tuple[list[int], int]] = []

    async def on_advance(batch: Any) -> None:
        numbers = [item.broker_payload[0] for item in batch]
        stored_before_advance.append((numbers, await count_events(database)))

    upstream.on_advance = on_advance
    await declare(database, "one", upstream)
    async with hosting(database):
        for number in range(20):
            upstream.put(number)
            await until(lambda number=number: number in upstream.outcomes())
    assert [numbers for numbers, _ in stored_before_advance] == [[n] for n in range(20)]
    assert all(count >= numbers[-1] + 1 for numbers, count in stored_before_advance)


@pytest.mark.rule("12: a commit whose outcome is unknown is repeated unchanged")
async def test_a_commit_of_unknown_outcome_is_repeated_and_only_then_advanced(
    database: Database, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit succeeded, but its answer was lost. When the rows are written again, the store already has them."""
    await declare(database, "one", upstream)
    async with hosting(database):
        perform_step = database.perform_step
        tries = 0

        async def lose_the_first_answer(step: Step) -> list[Row]:
            nonlocal tries
            rows = await perform_step(step)
            if isinstance(step, RecordEvents):
                tries += 1
                assert upstream.outcomes() == {}
                if tries == 1:
                    raise OutcomeUnknown("the answer was lost")
            return rows

        monkeypatch.setattr(database, "perform_step", lose_the_first_answer)
        upstream.put(1)
        await until(lambda: bool(upstream.outcomes()))
        assert tries == 2
        assert upstream.outcomes() == {1: (1, 0, 0)}
        assert await count_events(database) == 1


class YieldsWhatItIsTold(Acking):
    """Yields an event for each message. The store refuses the event for a message "refused"."""

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[Any]
    ) -> AsyncIterator[TriggerEvent]:
        async for event in shared_stream:
            yield TriggerEvent({"value": object() if event == "refused" else event})


CLASSES["YieldsWhatItIsTold"] = YieldsWhatItIsTold


@pytest.mark.rule("the store refuses the second of three messages, and all three are committed")
async def test_when_the_sink_refuses_message_two_of_three_that_one_alone_fails(
    database: Database, upstream: Upstream
) -> None:
    await declare(database, "one", upstream, classpath="YieldsWhatItIsTold", only=None)
    upstream.put("first", "refused", "third")
    async with hosting(database):
        await until(lambda: len(upstream.outcomes()) == 3)

        async def is_shown() -> bool:
            state, error, _ = (await watchers(database))["one"]
            return state == "running" and "a payload of type dict is not JSON" in (error or "")

        await eventually(is_shown)
    assert upstream.outcomes() == {"first": (1, 0, 0), "refused": (0, 1, 0), "third": (1, 0, 0)}
    assert [event.extra["value"] for event in await events_in(database)] == ["first", "third"]


# Rule 13


@pytest.mark.rule(
    "13: a redelivered message makes no second event, because the store has its key already"
)
async def test_a_message_that_is_redelivered_makes_no_second_event_and_is_confirmed(
    database: Database, upstream: Upstream
) -> None:
    async def broker_goes(batch: Any) -> None:
        upstream.on_advance = None
        raise OSError("gone just before it was told")

    upstream.on_advance = broker_goes
    await declare(database, "one", upstream)
    await declare(database, "two", upstream)
    async with hosting(database):
        upstream.put("a")
        await until(lambda: len(upstream.producers) == 2)
        assert await count_events(database) == 2
        upstream.put("a")
        await until(lambda: upstream.outcomes() == {"a": (2, 0, 0)})
    # Deliver "a" again, to another owner. The events of "a" exist already.
    upstream.advanced.clear()
    async with hosting(database, "next"):
        upstream.put("a", "b")
        await until(lambda: upstream.outcomes() == {"a": (2, 0, 0), "b": (2, 0, 0)})
    assert sorted(event.extra["value"] for event in await events_in(database)) == [*"aabb"]


# Rule 14


@pytest.mark.rule(
    "14: nothing is broadcast before all known members of the stream have joined or failed",
    "after a restart the first subscriber starts the poll before its siblings have joined",
)
async def test_after_a_restart_nothing_is_broadcast_before_everybody_in_the_store_has_joined(
    database: Database, upstream: Upstream
) -> None:
    """A message already waits when the first of six triggers could open the stream."""
    for number in range(5):
        await declare(database, f"w{number}", upstream)
    await declare(database, "broken", upstream, classpath="Broken")
    joined: list[list[str]] = []
    for start in range(3):
        upstream.put(start)
        async with hosting(database, f"start{start}") as host:
            await until(lambda start=start: start in upstream.outcomes())
            assert upstream.outcomes()[start] == (5, 1, 0)
            (stream,) = host.manager.streams.values()
            joined.append([member.name.partition("/")[0] for member in stream.members])
    # The store sorts the members, so their order does not depend on the database.
    assert joined == [["w0", "w1", "w2", "w3", "w4", "broken"]] * 3


@pytest.mark.rule(
    "14: the members are known before any plugin is made, because parsing stored the key's digest"
)
async def test_the_members_of_a_stream_are_known_before_any_trigger_is_made(
    database: Database, upstream: Upstream
) -> None:
    """One trigger's class cannot be loaded, so the host knows the trigger's stream only by its stored digest."""
    await declare(database, "fine", upstream)
    await declare(database, "cannot be loaded", upstream, classpath="Absent")
    async with hosting(database):
        upstream.put(1)
        await until(lambda: bool(upstream.outcomes()))
        assert upstream.outcomes() == {1: (1, 1, 0)}


# Rule 15


@pytest.mark.rule(
    "15: a stream has one owner, by a lease with an epoch; another instance may take over"
)
async def test_the_streams_of_a_dead_instance_are_taken_over_when_its_lease_has_expired(
    database: Database, upstream: Upstream
) -> None:
    await declare(database, "one", upstream)
    async with database.transaction() as session:
        soon = await database_now(session) + timedelta(seconds=1)
        await session.execute(update(Stream).values(owner="died", epoch=7, expires_at=soon))
    async with hosting(database):
        assert await owners(database) == {"stream": "died"}
        upstream.put(1)
        assert upstream.producers == []
        await until(lambda: upstream.outcomes() == {1: (1, 0, 0)})
        assert await owners(database) == {"stream": "me"}
        async with database.reading() as session:
            assert await session.scalar(select(Stream.epoch)) == 8


@pytest.mark.rule("15: a trigger is identified by its class and its canonical arguments")
async def test_triggers_are_their_class_and_arguments_and_serve_all_their_watchers(
    database: Database, upstream: Upstream
) -> None:
    await declare(database, "one", upstream)
    await declare(database, "two", upstream)
    async with database.transaction() as session:
        first, second = await session.scalars(select(Trigger).order_by(Trigger.id))
        await session.execute(
            update(Watcher).where(Watcher.trigger_id == second.id).values(trigger_id=first.id)
        )
        await session.delete(second)
    async with hosting(database) as host:
        upstream.put(1)
        await until(lambda: bool(upstream.outcomes()))
        assert upstream.outcomes() == {1: (1, 0, 0)}
        (stream,) = host.manager.streams.values()
        assert len(stream.members) == 1
        assert len({event.asset_id for event in await events_in(database)}) == 2


@pytest.mark.rule("15: an owner that has lost its lease can write nothing")
async def test_a_lease_that_is_lost_while_nothing_happens_ends_its_stream(
    database: Database, upstream: Upstream
) -> None:
    """The instance writes nothing that the store could refuse. Its next heartbeat finds the other owner."""
    is_open = anyio.Event()

    async def hold(event: Any) -> None:
        is_open.set()
        await anyio.sleep_forever()

    upstream.on_filter["one"] = hold
    await declare(database, "one", upstream)
    async with hosting(database) as host:
        upstream.put(1)
        await is_open.wait()
        async with database.transaction() as session:
            far = await database_now(session) + timedelta(days=1)
            await session.execute(
                update(Stream).values(owner="other", epoch=Stream.epoch + 1, expires_at=far)
            )
        await until(lambda: not host.manager.streams and upstream.closed == 1)
    assert await owners(database) == {"stream": "other"}
    # The other owner must resolve the message.
    assert upstream.outcomes() == {}


@pytest.mark.rule("15: an owner that has lost its lease can write nothing")
async def test_a_fenced_owner_shows_no_state_of_a_watcher(
    database: Database, upstream: Upstream
) -> None:
    await declare(database, "one", upstream)
    async with database.transaction() as session:
        await session.execute(update(Stream).values(owner="me", epoch=2))
    for fence, shown in (
        (Fence("stream", "me", 1), "waiting"),
        (Fence("stream", "other", 2), "waiting"),
        (Fence("stream", "me", 2), "running"),
    ):
        async with database.transaction() as session:
            await write_states(session, [WatcherState(1, 1, "running", None, fence)])
        assert (await watchers(database))["one"][0] == shown
