"""Streams are claimed, hosted, shown and given back, on real databases."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import anyio
import pytest
from sqlalchemy import select, update

from tests.store.seeding import NOW, count_events, until
from tests.unit.streams.streams import Acking, Upstream
from triggerer.abc import BaseEventTrigger, TriggerEvent
from triggerer.domain.watchers.lane_positions import PositionSink
from triggerer.domain.watchers.parked import ParkedStore
from triggerer.hosting import TriggerHost
from triggerer.hosting.factory import TriggerFactory
from triggerer.hosting.host import HostSettings
from triggerer.hosting.pending_writes import Writer
from triggerer.plugins import trigger_digest
from triggerer.processes.own_lease import OwnLease
from triggerer.store.database.opening import open_database
from triggerer.store.database.transactions import Database
from triggerer.store.database.wakeups.signals import Signal, announce
from triggerer.store.events.recorder import EventRecorder
from triggerer.store.schema.models import Asset, Stream, Trigger, Watcher
from triggerer.streams import RuntimeContext


class Broken(Acking):
    """A trigger whose constructor raises."""

    def __init__(self, **kwargs: Any) -> None:
        raise ValueError("cannot be made")


class FailsLate(Acking):
    """A trigger whose filter calls `on_filter` once, before it reads a message."""

    async def filter_shared_stream(self, shared_stream: Any) -> AsyncIterator[TriggerEvent]:
        act = Upstream.known[self.upstream].on_filter[self.name]
        await act(None)
        async for _ in shared_stream:
            yield TriggerEvent({})


LEASE = timedelta(seconds=3)

CLASSES: dict[str, type[BaseEventTrigger]] = {
    "Acking": Acking,
    "Broken": Broken,
    "FailsLate": FailsLate,
}


async def declare(
    database: Database,
    name: str,
    upstream: Upstream,
    *,
    classpath: str = "Acking",
    stream: str = "stream",
    **kwargs: Any,
) -> None:
    """Store a watcher of an asset with this name, as the DAG processor does."""
    async with database.transaction() as session:
        if await session.get(Stream, stream) is None:
            session.add(Stream(digest=stream, key=stream))
        asset = await session.scalar(select(Asset).where(Asset.name == name))
        if asset is None:
            asset = Asset(name=name, uri=f"x-test://{name}", created_at=NOW)
            session.add(asset)
        kwargs = {"upstream": upstream.name, "name": name, **kwargs}
        trigger = Trigger(
            digest=trigger_digest(classpath, kwargs),
            classpath=classpath,
            kwargs=kwargs,
            stream_digest=stream,
        )
        session.add(trigger)
        await session.flush()
        watcher = await session.scalar(select(Watcher).where(Watcher.asset_id == asset.id))
        if watcher is None:
            watcher = Watcher(asset_id=asset.id, name="w", path="f.py", updated_at=NOW)
            session.add(watcher)
        previous = watcher.trigger_id
        watcher.trigger_id = trigger.id
        await session.flush()
        if previous is not None:
            await session.delete(await session.get_one(Trigger, previous))
        announce(session, Signal.STREAMS_CHANGED, stream)


async def delete_watcher(database: Database, name: str) -> None:
    async with database.transaction() as session:
        asset = await session.scalar(select(Asset).where(Asset.name == name))
        assert asset is not None
        watcher = await session.scalar(select(Watcher).where(Watcher.asset_id == asset.id))
        assert watcher is not None
        trigger = await session.get_one(Trigger, watcher.trigger_id)
        await session.delete(watcher)
        await session.flush()
        await session.delete(trigger)
        announce(session, Signal.STREAMS_CHANGED)


async def watchers(database: Database) -> dict[str, tuple[str, str | None, str | None]]:
    """Return the state, the error and the owner of each watcher, by the name of its asset."""
    async with database.reading() as session:
        rows = await session.execute(
            select(Asset.name, Watcher.state, Watcher.error, Watcher.owner).join(
                Watcher, Watcher.asset_id == Asset.id
            )
        )
        return {name: (state, error, owner) for name, state, error, owner in rows}


async def owners(database: Database) -> dict[str, str | None]:
    async with database.reading() as session:
        rows = await session.execute(select(Stream.digest, Stream.owner))
        return {digest: owner for digest, owner in rows}  # noqa: C416 (mypy sees rows, no pairs)


async def eventually(check: Any, *, timeout: float = 60) -> None:
    with anyio.fail_after(timeout):
        while not await check():  # noqa: ASYNC110 (another transaction makes it true)
            await anyio.sleep(0.02)


@asynccontextmanager
async def running(host: TriggerHost, recorder: EventRecorder) -> AsyncIterator[None]:
    """Run the host and the recorder while the block lasts. The recorder ends last."""
    async with anyio.create_task_group() as background:
        background.start_soon(recorder.run)
        async with anyio.create_task_group() as tasks:
            await tasks.start(host.run)
            yield
            tasks.cancel_scope.cancel()
        background.cancel_scope.cancel()


@asynccontextmanager
async def hosting(
    database: Database,
    name: str = "me",
    *,
    is_alone: bool = False,
    capacity: int = 1000,
    own_lease: OwnLease | None = None,
    positions: PositionSink | None = None,
    parked: ParkedStore | None = None,
    writers: Sequence[Writer] = (),
    classes: Mapping[str, type[BaseEventTrigger]] = CLASSES,
) -> AsyncIterator[TriggerHost]:
    recorder = EventRecorder(database, on_fenced=lambda fence: host.mark_fenced(fence))  # noqa: PLW0108
    host = TriggerHost(
        database,
        instance_id=name,
        factory=TriggerFactory(classes.__getitem__),
        runtime=RuntimeContext(
            recorder, positions, parked, lease=own_lease or OwnLease(LEASE, margin=1 / 12)
        ),
        settings=HostSettings(
            lease=LEASE,
            heartbeat=timedelta(seconds=0.3),
            retry=timedelta(seconds=0.1),
            drain=timedelta(seconds=2),
            capacity=capacity,
        ),
        takes_over_at_once=is_alone,
        writers=writers,
    )
    async with running(host, recorder):
        yield host


async def test_a_declared_watcher_is_hosted_shown_and_stored_for(
    database: Database, upstream: Upstream
) -> None:
    await declare(database, "one", upstream)
    async with hosting(database):
        upstream.put(1, 2, 3)
        await until(lambda: len(upstream.outcomes()) == 3)
        assert await count_events(database) == 3

        async def is_shown() -> bool:
            return (await watchers(database))["one"] == ("running", None, "me")

        await eventually(is_shown)
    assert (await watchers(database))["one"] == ("waiting", None, None)
    assert await owners(database) == {"stream": None}


@pytest.mark.rule("11: a failed trigger is restarted at growing delays, and shown with its error")
async def test_one_that_cannot_be_made_is_shown_and_its_siblings_events_fail_for_it(
    database: Database, upstream: Upstream
) -> None:
    await declare(database, "broken", upstream, classpath="Broken")
    await declare(database, "fine", upstream)
    async with hosting(database):
        upstream.put(1)
        await until(lambda: bool(upstream.outcomes()))
        # The broken watcher has failed the message, so the broker must not pass it.
        assert upstream.outcomes() == {1: (1, 1, 0)}

        async def is_shown() -> bool:
            shown = await watchers(database)
            return shown["fine"][0] == "running" and shown["broken"] == (
                "failing",
                "ValueError: cannot be made",
                "me",
            )

        await eventually(is_shown)


@pytest.mark.rule("11: a failed trigger is restarted at growing delays, and shown with its error")
async def test_one_that_is_tried_again_is_failing_until_it_goes_on_for_longer_than_before(
    database: Database, upstream: Upstream
) -> None:
    await declare(database, "late", upstream, classpath="FailsLate")
    attempts = 0
    is_away = True

    async def fail(_: object) -> None:
        nonlocal attempts
        attempts += 1
        await anyio.sleep(0.4)
        if is_away:
            raise ConnectionError("away")

    upstream.on_filter["late"] = fail
    shown: list[tuple[str, str | None, str | None]] = []

    async def state() -> tuple[str, str | None, str | None]:
        shown.append((await watchers(database))["late"])
        return shown[-1]

    async def is_failing() -> bool:
        return (await state())[0] == "failing"

    async def is_tried_anew() -> bool:
        await state()
        return attempts == before + 3

    async def is_running() -> bool:
        return (await state())[0] == "running"

    async with hosting(database):
        await eventually(is_failing)
        shown.clear()
        before = attempts
        await eventually(is_tried_anew)
        assert {*shown} == {("failing", "ConnectionError: away", "me")}
        is_away = False
        await eventually(is_running)


@pytest.mark.rule(
    "9: a change of a watcher's arguments resolves no message",
    "L4: a change disturbs only what it touches",
)
async def test_a_deleted_watcher_stops_and_a_changed_one_goes_on_with_its_new_arguments(
    database: Database, upstream: Upstream
) -> None:
    await declare(database, "goes", upstream)
    await declare(database, "stays", upstream)
    async with hosting(database) as host:
        upstream.put(1)
        await until(lambda: len(upstream.outcomes()) == 1)
        await delete_watcher(database, "goes")
        (stream,) = host.manager.streams.values()
        await until(lambda: len(stream.members) == 1)
        upstream.put(2)
        await until(lambda: len(upstream.outcomes()) == 2)
        assert upstream.outcomes() == {1: (2, 0, 0), 2: (1, 0, 0)}
        await declare(database, "stays", upstream, only=[4])
        await until(lambda: [m.spec.kwargs.get("only") for m in stream.members] == [[4]])
        upstream.put(3, 4)
        await until(lambda: len(upstream.outcomes()) == 4)
        assert await count_events(database) == 4
    assert len(upstream.producers) == 1


@pytest.mark.rule("3: a watcher may join a running stream, and gets the messages from then on")
async def test_a_new_watcher_joins_the_running_stream(
    database: Database, upstream: Upstream
) -> None:
    await declare(database, "first", upstream)
    async with hosting(database) as host:
        (stream,) = host.manager.streams.values()
        await declare(database, "second", upstream)
        await until(lambda: len(stream.members) == 2)
        upstream.put(1)
        await until(lambda: upstream.outcomes() == {1: (2, 0, 0)})


@pytest.mark.rule(
    "9: a lost lease resolves no message", "15: an owner that has lost its lease can write nothing"
)
async def test_a_fenced_owner_writes_nothing_and_stops(
    database: Database, upstream: Upstream
) -> None:
    await declare(database, "one", upstream)
    async with hosting(database) as host:
        upstream.put(1)
        await until(lambda: len(upstream.outcomes()) == 1)
        async with database.transaction() as session:
            await session.execute(
                update(Stream).values(
                    owner="other", epoch=Stream.epoch + 1, expires_at=NOW + timedelta(days=36500)
                )
            )
        upstream.put(2)
        await until(lambda: not host.manager.streams)
        assert upstream.outcomes() == {1: (1, 0, 0)}
        assert await count_events(database) == 1


async def test_a_lone_instance_takes_over_the_streams_of_a_dead_one_at_once(
    sqlite_url: str, upstream: Upstream
) -> None:
    async with open_database(sqlite_url) as database:
        await declare(database, "one", upstream)
        async with database.transaction() as session:
            await session.execute(
                update(Stream).values(owner="dead", epoch=7, expires_at=NOW + timedelta(days=36500))
            )
        async with hosting(database, is_alone=True):
            assert await owners(database) == {"stream": "me"}


@pytest.mark.rule("15: several instances divide the streams among them")
async def test_two_instances_divide_the_streams_and_one_takes_over_when_the_other_leaves(
    postgres_url: str, upstream: Upstream
) -> None:
    async with open_database(postgres_url) as database:
        for number in range(4):
            await declare(database, f"w{number}", upstream, stream=f"stream-{number}")

        async def shares() -> list[int]:
            owned = [owner for owner in (await owners(database)).values() if owner]
            return sorted(owned.count(owner) for owner in set(owned))

        async with hosting(database, "first"):
            assert await shares() == [4]
            async with hosting(database, "second"):

                async def is_divided() -> bool:
                    return await shares() == [2, 2]

                await eventually(is_divided)

            async def is_back() -> bool:
                return await shares() == [4]

            await eventually(is_back)


class Writing:
    """A writer with unwritten changes of the stream "stream", until `written` is set."""

    def __init__(self) -> None:
        self.written = anyio.Event()

    def is_writing(self, stream_digest: str) -> bool:
        return stream_digest == "stream" and not self.written.is_set()

    async def wait_until_written(self, stream_digests: Collection[str]) -> None:
        if "stream" in stream_digests:
            await self.written.wait()


async def test_a_stream_starts_again_once_what_it_had_submitted_is_written(
    database: Database, upstream: Upstream
) -> None:
    other = Upstream(f"{upstream.name}, another")
    await declare(database, "one", upstream)
    await declare(database, "other", other, stream="another")
    writing = Writing()
    async with hosting(database, writers=[writing]):
        other.put(1)
        await until(lambda: len(other.outcomes()) == 1)
        # Both streams were claimed at the same time. The stream without unwritten changes is read already.
        assert not upstream.producers
        writing.written.set()
        upstream.put(2)
        await until(lambda: len(upstream.outcomes()) == 1)


async def test_a_lease_is_given_back_once_what_was_submitted_under_it_is_written(
    database: Database, upstream: Upstream
) -> None:
    await declare(database, "one", upstream)
    writing = Writing()
    writing.written.set()
    async with anyio.create_task_group() as background, hosting(database, writers=[writing]):
        upstream.put(1)
        await until(lambda: len(upstream.outcomes()) == 1)
        writing.written = anyio.Event()

        async def write() -> None:
            # The stream has been stopped, but still has its owner.
            await eventually(has_stopped)
            assert await owners(database) == {"stream": "me"}
            writing.written.set()

        async def has_stopped() -> bool:
            return upstream.closed == 1

        background.start_soon(write)
    assert await owners(database) == {"stream": None}
