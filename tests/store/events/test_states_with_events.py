"""The state of a producer with `state_after` is stored in the same transaction as its events, on each database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable, Sequence
from contextlib import asynccontextmanager
from functools import partial, partialmethod
from typing import Any

import anyio
import pytest
from sqlalchemy import select, update

from tests.store.seeding import FENCE, Event, events_in, recording, until
from triggerer.abc import (
    AdvanceItem,
    BaseEventTrigger,
    SharedStreamProducer,
    StreamState,
    TriggerEvent,
)
from triggerer.domain.events import EventSource, Fence, WatcherRef
from triggerer.domain.text.json_text import load_json
from triggerer.domain.watchers.stream_states import StateChange, Submission
from triggerer.errors import LeaseLost, RowRefused, StoreError, StoreUnavailable
from triggerer.store.database.postgres.runner import PostgresRunner
from triggerer.store.database.script import Script
from triggerer.store.database.sqlite.runner import SqliteRunner
from triggerer.store.database.transactions import Database
from triggerer.store.events import recorder as recorder_module
from triggerer.store.events.recorder import EventRecorder
from triggerer.store.schema.models import Stream
from triggerer.store.schema.models import StreamState as StoredRow
from triggerer.store.streams.state_writer import StateWriter
from triggerer.streams import Manager, RuntimeContext, RuntimeSettings, TriggerSpec

SOURCE = EventSource((WatcherRef(1, 1),), FENCE)


async def stored(database: Database) -> tuple[list[Any], Any]:
    """The payloads of the events, and the state."""
    async with database.reading() as session:
        states = list(await session.scalars(select(StoredRow.value)))
    state = load_json(states[0]) if states else None
    return [event.extra["n"] for event in await events_in(database)], state


def events(*numbers: int, source: EventSource = SOURCE) -> list[Event]:
    return [Event({"n": number}, f"key/{number}", source=source) for number in numbers]


def submit(recorder: EventRecorder, made: Sequence[Event], value: int) -> list[Exception | None]:
    """Submit events with a state; return a list that gets the outcome of the state."""
    told: list[Exception | None] = []
    recorder.submit_with_state_nowait(
        [Submission(one, one, one.source, one.idempotency_key, one.ordinal) for one in made],
        StateChange(FENCE, "key", str(value).encode(), told.append),
    )
    return told


def fails_between(
    monkeypatch: pytest.MonkeyPatch, error: Exception, *, times: int = 1_000_000
) -> list[int]:
    """Let `times` transactions fail between the write of their events and the write of the state.

    The only item of the returned list counts the failures.
    """
    save_states, failed = recorder_module.save_states, [0]

    def fail(changes: Sequence[StateChange]) -> Script[None]:
        if failed[0] < times:
            failed[0] += 1
            raise error
        yield from save_states(changes)

    monkeypatch.setattr(recorder_module, "save_states", fail)
    return failed


async def test_the_events_and_their_state_are_durable_together(watched: Database) -> None:
    async with recording(watched) as recorder:
        made = events(1, 2)
        told = submit(recorder, made, 2)
        await until(lambda: bool(told))
        assert [one.error for one in made] == [None, None]
    assert told == [None]
    assert await stored(watched) == ([1, 2], 2)


async def test_an_event_that_no_watcher_wants_any_longer_keeps_no_state_back(
    watched: Database,
) -> None:
    async with recording(watched) as recorder:
        told = submit(recorder, [*events(1), *events(2, source=EventSource((), FENCE))], 2)
        await until(lambda: bool(told))
    assert told == [None]
    assert await stored(watched) == ([1], 2)


async def test_a_state_whose_events_no_watcher_wants_is_stored(watched: Database) -> None:
    async with recording(watched) as recorder:
        told = submit(recorder, events(1, source=EventSource((), FENCE)), 1)
        await until(lambda: bool(told))
    assert told == [None]
    assert await stored(watched) == ([], 1)


@pytest.mark.parametrize("others", [0, 1], ids=["alone", "with_other_events"])
async def test_a_former_owner_stores_no_state_whose_events_no_watcher_wants(
    watched: Database, others: int
) -> None:
    async with watched.transaction() as session:
        await session.execute(update(Stream).values(owner="another", epoch=FENCE.epoch + 1))
    fenced: list[Fence] = []
    async with recording(watched, on_fenced=fenced.append) as recorder:
        # Events without a fence are stored under any lease.
        for other in events(*[2] * others, source=EventSource((WatcherRef(1, 1),), None)):
            recorder.submit_nowait(other, other, other.source, other.idempotency_key, 0)
        told = submit(recorder, events(1, source=EventSource((), FENCE)), 1)
        await until(lambda: bool(told))
    assert isinstance(told[0], LeaseLost)
    assert fenced == [FENCE]
    assert await stored(watched) == ([2] * others, None)


async def test_a_crash_between_the_events_and_their_state_leaves_neither(
    watched: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = fails_between(monkeypatch, StoreUnavailable("the process died here"))
    async with recording(watched) as recorder:
        told = submit(recorder, events(1, 2), 2)
        await until(lambda: failed[0] > 0)
    # The task that writes was cancelled, so the state got no answer.
    assert told == []
    assert await stored(watched) == ([], None)


async def test_after_a_failure_between_them_the_repeat_stores_both(
    watched: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = fails_between(monkeypatch, StoreUnavailable("the connection broke here"), times=2)
    async with recording(watched) as recorder:
        told = submit(recorder, events(1, 2), 2)
        await until(lambda: bool(told))
    assert failed == [2]
    assert await stored(watched) == ([1, 2], 2)


@pytest.mark.rule("15: an owner that has lost its lease can write nothing")
async def test_a_former_owner_stores_neither_events_nor_state(watched: Database) -> None:
    async with watched.transaction() as session:
        await session.execute(update(Stream).values(owner="another", epoch=FENCE.epoch + 1))
    fenced: list[Fence] = []
    async with recording(watched, on_fenced=fenced.append) as recorder:
        (event,) = made = events(1)
        told = submit(recorder, made, 1)
        await until(lambda: bool(told))
        assert isinstance(event.error, LeaseLost)
    assert [type(error) for error in told] == [LeaseLost]
    assert fenced == [FENCE]
    assert await stored(watched) == ([], None)


@pytest.mark.rule("16: a row that the store refuses fails only its own event")
async def test_an_event_that_is_refused_keeps_the_state_back_and_no_other_event(
    watched: Database,
) -> None:
    async with recording(watched) as recorder:
        good, bad = made = [*events(1), Event({"n": object()}, "key/2", source=SOURCE)]
        told = submit(recorder, made, 2)
        await until(lambda: bool(told) and bool(good.outcomes))
        assert good.error is None
        assert isinstance(bad.error, RowRefused)
    assert [type(error) for error in told] == [StoreError]
    assert await stored(watched) == ([1], None)


async def test_a_transaction_that_the_store_refuses_is_tried_without_the_state(
    watched: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails_between(monkeypatch, StoreError("the store refuses this state"))
    async with recording(watched) as recorder:
        (event,) = made = events(1)
        told = submit(recorder, made, 1)
        await event.done.wait()
        assert event.error is None
    assert [type(error) for error in told] == [StoreError]
    assert await stored(watched) == ([1], None)


async def test_events_that_exceed_one_transaction_are_stored_without_the_state(
    watched: Database,
) -> None:
    async with recording(watched, max_batch_rows=2) as recorder:
        made = events(1, 2, 3)
        told = submit(recorder, made, 3)
        with anyio.fail_after(60):
            await recorder.drained()
    assert [type(error) for error in told] == [StoreError]
    assert await stored(watched) == ([1, 2, 3], None)


class Counting(SharedStreamProducer):
    """Yields numbers. Its state is the last number that was advanced."""

    count = 200

    def use_state(self, state: StreamState) -> None:
        self.state = state

    async def open_stream(self) -> AsyncIterator[tuple[int, int]]:
        for number in range((self.state.value or 0) + 1, self.count + 1):
            yield number, number
            if not number % 7:
                await anyio.sleep(0.002)
        await anyio.sleep_forever()

    def state_after(self, items: Sequence[AdvanceItem]) -> int:
        last: int = items[-1].broker_payload
        return last

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        assert all(item.outcome.is_clean for item in batch)
        await self.state.save(batch[-1].broker_payload)

    def get_idempotency_key(self, broker_payload: int) -> str:
        return f"key/{broker_payload}"


class CountingTrigger(BaseEventTrigger):
    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "tests.CountingTrigger", {}

    def shared_stream_key(self) -> Hashable:
        return "counting"

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        return Counting()

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[int]
    ) -> AsyncIterator[TriggerEvent]:
        async for number in shared_stream:
            yield TriggerEvent({"n": number})


@asynccontextmanager
async def serving(database: Database) -> AsyncIterator[None]:
    """Run the streams on the database. The end of the block cancels them, and nothing is drained."""
    async with recording(database) as recorder, anyio.create_task_group() as tasks:
        states = StateWriter(database, on_fenced=lambda fence: None)
        tasks.start_soon(states.run)
        # With few outstanding messages, each transaction has few events. So each cut comes before the last event.
        settings = RuntimeSettings(max_outstanding=10)
        context = RuntimeContext(recorder, states=states, with_state=recorder, settings=settings)
        async with Manager(context) as manager:
            make = CountingTrigger
            spec = TriggerSpec(name="counting", make=make, kwargs={}, source=SOURCE)
            manager.add([spec])
            yield
        tasks.cancel_scope.cancel()


def cut_after(
    monkeypatch: pytest.MonkeyPatch, database: Database, transactions: int
) -> anyio.Event:
    """Cut the database off after this number of successful transactions."""
    cut, count = anyio.Event(), [0]

    async def perform(original: Any, *given: Any) -> Any:
        if count[0] >= transactions:
            cut.set()
            raise StoreUnavailable("it is away")
        result = await original(*given)
        count[0] += 1
        return result

    runner = SqliteRunner if database.dialect == "sqlite" else PostgresRunner
    for name in ("perform", "perform_step"):
        monkeypatch.setattr(runner, name, partialmethod(partial(perform, getattr(runner, name))))
    return cut


async def test_wherever_it_is_cut_off_the_state_is_that_of_the_events(
    watched: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    for transactions in (1, 2, 3, 1, 5, 1):
        with monkeypatch.context() as patch:
            cut = cut_after(patch, watched, transactions)
            async with serving(watched):
                with anyio.fail_after(60):
                    await cut.wait()
        numbers, state = await stored(watched)
        seen.append(state)
        # The stored events end exactly at the stored state.
        assert numbers == list(range(1, (state or 0) + 1))
    async with serving(watched):
        with anyio.fail_after(60):
            while (await stored(watched))[1] != Counting.count:  # noqa: ASYNC110 (nothing announces it)
                await anyio.sleep(0.01)
    assert (await stored(watched))[0] == list(range(1, Counting.count + 1))
    assert seen[0] is not None
    assert seen[-1] < Counting.count
