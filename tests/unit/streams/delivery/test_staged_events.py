"""If a stream keeps a state, its events go to the store together with the state after these events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel

from triggerer.abc import (
    AdvanceItem,
    BaseEventTrigger,
    SharedStreamProducer,
    StreamState,
    TriggerEvent,
)
from triggerer.domain.events import EventSource, Fence, PendingEvent, WatcherRef
from triggerer.domain.watchers.stream_states import StateChange, Submission
from triggerer.errors import StoreError
from triggerer.streams import Manager, RuntimeContext, TriggerSpec

FENCE = Fence("s", "me", 1)


class Store:
    """Notes what it is given, and answers when the test says so."""

    is_full = False

    def __init__(self) -> None:
        self.given: list[Any] = []
        self.waiting: list[tuple[list[PendingEvent], StateChange | None]] = []
        self.saved: list[bytes] = []

    async def wait_for_room(self) -> None: ...

    def submit_nowait(self, event: PendingEvent, yielded: Any, *_: Any) -> None:
        self.given.append([yielded.payload])
        self.waiting.append(([event], None))

    def submit_with_state_nowait(
        self, submissions: Sequence[Submission], change: StateChange
    ) -> None:
        self.given.append(([one.yielded.payload for one in submissions], change.value))
        self.waiting.append(([one.event for one in submissions], change))

    def answer(self, error: StoreError | None = None) -> None:
        waiting, self.waiting = self.waiting, []
        for events, change in waiting:
            for event in events:
                event.complete(None)
            if change is not None:
                change.on_done(error)

    # The methods of a `StateStore`.

    async def load(self, fence: Fence, key: Hashable) -> Any:
        return None


class States(Store):
    def submit_nowait(self, change: Any, *_: Any) -> None:
        self.saved.append(change.value)
        change.on_done(None)


class Numbers(SharedStreamProducer):
    made: list[Numbers] = []  # noqa: RUF012  (a test's)

    def __init__(self) -> None:
        self.made.append(self)
        self.advanced: list[int] = []

    def use_state(self, state: StreamState) -> None:
        self.state = state

    async def open_stream(self) -> AsyncIterator[tuple[int, int]]:
        for number in (1, 2, 3):
            yield number, number
        await anyio.sleep_forever()

    def state_after(self, items: Sequence[AdvanceItem]) -> int:
        last: int = items[-1].broker_payload
        return last

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        self.advanced += [item.broker_payload for item in batch]
        await self.state.save(self.advanced[-1])


class Watching(BaseEventTrigger):
    def __init__(self, name: str, release: anyio.Event | None = None) -> None:
        self.name = name
        self.release = release

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"tests.Watching.{self.name}", {}

    def shared_stream_key(self) -> Hashable:
        return "numbers"

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        return Numbers()

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[int]
    ) -> AsyncIterator[TriggerEvent]:
        payload: dict[str, Any] = {}
        async for number in shared_stream:
            if self.release is not None and not self.release.is_set():
                await self.release.wait()
            payload[self.name] = number
            yield TriggerEvent(payload)


async def turns() -> None:
    for _ in range(50):
        await anyio.lowlevel.checkpoint()


class Scene:
    def __init__(self, manager: Manager, store: Store, states: States) -> None:
        self.manager, self.store, self.states = manager, store, states

    def add(self, *triggers: Watching) -> None:
        self.manager.add(
            [
                TriggerSpec(
                    name=one.name,
                    make=lambda one=one: one,  # type: ignore[misc]
                    kwargs={},
                    source=EventSource((WatcherRef(number, 0),), FENCE),
                )
                for number, one in enumerate(triggers)
            ]
        )


@asynccontextmanager
async def opened() -> AsyncIterator[Scene]:
    Numbers.made.clear()
    store, states = Store(), States()
    async with Manager(RuntimeContext(store, states=states, with_state=store)) as manager:
        yield Scene(manager, store, states)


async def test_the_events_of_one_tick_go_with_the_state_that_covers_them() -> None:
    async with opened() as scene:
        scene.add(Watching("a"))
        await turns()
        # A filter may reuse a payload: the store gets the value at the time of the yield.
        assert scene.store.given == [([{"a": 1}, {"a": 2}, {"a": 3}], b"3")]
        assert Numbers.made[0].advanced == []
        scene.store.answer()
        await turns()
        assert Numbers.made[0].advanced == [1, 2, 3]
        assert scene.states.saved == []


async def test_a_sibling_that_is_slow_delays_no_events_and_takes_the_state_with_its_own() -> None:
    async with opened() as scene:
        release = anyio.Event()
        scene.add(Watching("quick"), Watching("slow", release))
        await turns()
        assert scene.store.given == [[{"quick": 1}], [{"quick": 2}], [{"quick": 3}]]
        scene.store.answer()
        await turns()
        assert Numbers.made[0].advanced == []
        release.set()
        await turns()
        assert scene.store.given[3:] == [([{"slow": 1}, {"slow": 2}, {"slow": 3}], b"3")]
        scene.store.answer()
        await turns()
        assert Numbers.made[0].advanced == [1, 2, 3]
        assert scene.states.saved == []


async def test_a_state_that_was_not_stored_is_saved_by_advance_after_the_events() -> None:
    async with opened() as scene:
        scene.add(Watching("a"))
        await turns()
        scene.store.answer(StoreError("one of the events was refused"))
        await turns()
        assert Numbers.made[0].advanced == [1, 2, 3]
        assert scene.states.saved == [b"3"]


class Paused(Numbers):
    """Publishes its second number only after the test says so."""

    continues: anyio.Event

    async def open_stream(self) -> AsyncIterator[tuple[int, int]]:
        yield 1, 1
        await self.continues.wait()
        yield 2, 2
        await anyio.sleep_forever()


class WatchingTheFirst(Watching):
    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        return Paused()

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[int]
    ) -> AsyncIterator[TriggerEvent]:
        async for number in shared_stream:
            if number == 1:
                yield TriggerEvent({self.name: number})


async def test_items_that_become_ready_while_a_state_is_stored_are_advanced_together_with_it() -> (
    None
):
    Paused.continues = anyio.Event()
    async with opened() as scene:
        scene.add(WatchingTheFirst("a"))
        await turns()
        assert scene.store.given == [([{"a": 1}], b"1")]
        Paused.continues.set()
        await turns()
        scene.store.answer()
        await turns()
        assert Numbers.made[0].advanced == [1, 2]
        assert scene.states.saved == [b"2"]
