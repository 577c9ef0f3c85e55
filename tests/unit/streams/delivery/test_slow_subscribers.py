"""If a subscriber holds up a lane or the poll while a sibling waits, the subscriber falls behind (rules 8 and 18)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from tests.unit.streams.scene import MAX_DELIVERIES, Scene, Sink, Watching
from triggerer.abc import AdvanceItem, SharedStreamProducer, TriggerEvent
from triggerer.streams import Manager, RuntimeContext, RuntimeSettings
from triggerer.synchronization import Notifier
from triggerer.testing import InMemoryProducer, InMemoryQueueProducer

SLOW, WELL = 1, 2
LARGE = "large" * 20
EVENTS = {"max_outstanding_per_lane": 8}
BYTES = {"max_outstanding_bytes_per_lane": 80}
EVENTS_OF_STREAM = {"max_outstanding": 8}
BYTES_OF_STREAM = {"max_outstanding_bytes": 80, "max_outstanding_bytes_per_lane": 80}


def settings(overflow_grace: float = 3600.0, **bounds: int) -> RuntimeSettings:
    return RuntimeSettings(
        max_deliveries=MAX_DELIVERIES, ack_timeout=3600.0, overflow_grace=overflow_grace, **bounds
    )


@asynccontextmanager
async def two(scene: Scene, sink: Sink, given: RuntimeSettings) -> AsyncIterator[tuple[Any, ...]]:
    """Host the watchers "slow" and "well"; yields the manager and both members."""
    context = RuntimeContext(
        sink, sink, sink, settings=given, restart_first=0.01, restart_longest=0.01
    )
    async with Manager(context) as manager:
        yield manager, *manager.add(scene.specs("slow", "well"))


def texts(lane: int, count: int = 40) -> list[str]:
    """Return texts of ten bytes each."""
    return [f"{lane:4}-{number:5}" for number in range(count)]


def in_lane(values: Sequence[str], lane: int) -> list[str]:
    return [value for value in values if value in texts(lane) or (value == LARGE and not lane)]


def has_fallen_behind(sink: Sink) -> bool:
    return bool(sink.positions or sink.stored_ever)


async def some_turns(count: int = 200) -> None:
    for _ in range(count):
        await checkpoint()


def is_full(manager: Manager) -> bool:
    """Whether a lane is full."""
    (stream,) = manager.streams.values()
    return stream.group is not None and bool(stream.group.state.lanes.full)


class PausesAllQueue(InMemoryQueueProducer):
    pauses_lanes = False


class PausesAllLog(InMemoryProducer):
    pauses_lanes = False


class OnWholeStream(Watching):
    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        scene = Scene.by_name[kwargs["scene"]]
        return (PausesAllQueue if scene.is_queue else PausesAllLog)(scene.broker)


@pytest.mark.rule("18: a watcher that is too slow for a waiting sibling falls behind")
@pytest.mark.parametrize("kind", [Watching, OnWholeStream], ids=["lane", "poll"])
@pytest.mark.parametrize(
    ("bounds", "begins_with"),
    [
        (EVENTS, []),
        (BYTES, []),
        (BYTES, [LARGE]),
        (EVENTS_OF_STREAM, []),
        (BYTES_OF_STREAM, []),
        (BYTES_OF_STREAM, [LARGE]),
    ],
    ids=["events", "bytes", "large", "events of stream", "bytes of stream", "large in stream"],
)
async def test_a_watcher_that_hangs_falls_behind_and_its_sibling_continues_in_all_lanes(
    any_scene: Scene,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[Watching],
    bounds: dict[str, int],
    begins_with: list[str],
) -> None:
    monkeypatch.setattr(any_scene, "watcher", lambda name: kind(any_scene.name, name))
    sink = Sink()
    lanes = {0: [*begins_with, *texts(0)], 1: texts(1), 2: texts(2)}
    gate = any_scene.gates["slow", lanes[0][0]] = anyio.Event()
    async with two(any_scene, sink, settings(0.01 if begins_with else 3600.0, **bounds)):
        for lane, values in lanes.items():
            any_scene.publish(*values, lane=lane)
        await sink.until(lambda: len(sink.derived(WELL)) == sum(map(len, lanes.values())))
        await sink.until(lambda: all(any_scene.broker.committed(lane) >= 40 for lane in lanes))
        assert has_fallen_behind(sink)
        gate.set()
        await sink.until(lambda: len(sink.derived(SLOW)) == sum(map(len, lanes.values())))
        for lane, values in lanes.items():
            assert in_lane(sink.derived(SLOW), lane) == values
            assert in_lane(sink.derived(WELL), lane) == values
        # Only its open message comes again.
        given = [event for name, event in any_scene.opened if name == "slow"]
        assert {event for event in given if given.count(event) > 1} == {lanes[0][0]}


@pytest.mark.parametrize("bounds", [EVENTS, BYTES], ids=["events", "bytes"])
async def test_one_that_is_slower_than_its_sibling_by_more_than_half_a_lane_falls_behind(
    any_scene: Scene, bounds: dict[str, int]
) -> None:
    """The slow subscriber pulls messages all the time, but more slowly than its sibling."""
    sink = Sink()

    class Slow(Watching):
        async def filter_shared_stream(
            self, shared_stream: AsyncIterator[Any]
        ) -> AsyncIterator[TriggerEvent]:
            async for event in super().filter_shared_stream(shared_stream):
                if self.name == "slow":
                    await anyio.sleep(0.005)
                yield event

    any_scene.watcher = lambda name: Slow(any_scene.name, name)  # type: ignore[method-assign]
    async with two(any_scene, sink, settings(**bounds)):
        any_scene.publish(*texts(0))
        await sink.until(lambda: sink.derived(WELL) == texts(0))
        assert len(sink.derived(SLOW)) < 20
        await sink.until(lambda: sink.derived(SLOW) == texts(0))


async def test_a_subscriber_that_becomes_slow_after_the_lane_was_paused_is_seen(
    any_scene: Scene,
) -> None:
    """Until the test opens a gate, "well" is slow too. Then "well" reads on, and waits for "slow"."""
    sink = Sink()
    any_scene.gates["slow", texts(0)[0]] = anyio.Event()
    gate = any_scene.gates["well", texts(0)[0]] = anyio.Event()
    async with two(any_scene, sink, settings(**EVENTS)) as (manager, *_):
        any_scene.publish(*texts(0))
        await sink.until(lambda: is_full(manager))
        await some_turns()
        assert not has_fallen_behind(sink), "nobody waits for more"
        gate.set()
        await sink.until(lambda: sink.derived(WELL) == texts(0))


class Shared(Sink):
    """A sink that other streams may have filled."""

    is_full = False

    def __init__(self) -> None:
        super().__init__()
        self.has_room = Notifier()

    async def wait_for_room(self) -> None:
        while self.is_full:
            await self.has_room.wait()


async def test_no_subscriber_counts_as_slow_while_the_store_is_slow_but_afterwards_one_falls_behind(
    any_scene: Scene,
) -> None:
    sink = Shared()
    any_scene.ignores = lambda _: True
    any_scene.gates["slow", texts(0)[0]] = anyio.Event()
    async with two(any_scene, sink, settings(**EVENTS)) as (manager, slow, _):
        sink.is_full = True
        any_scene.publish(*texts(0))
        await sink.until(lambda: is_full(manager))
        await some_turns()
        assert slow.subscriber.is_present
        # The store's room must cause the check for slow subscribers, because nothing happens in the stream itself.
        sink.is_full = False
        sink.has_room.notify_all()
        await sink.until(lambda: ("well", texts(0)[-1]) in any_scene.opened)
        assert has_fallen_behind(sink)


class Unanswered(InMemoryQueueProducer):
    """Advances only when a gate is open."""

    gate: anyio.Event

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        await self.gate.wait()
        await super().advance(batch)


class UnansweredLog(Unanswered, InMemoryProducer):
    pass


class OnUnanswered(Watching):
    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        scene = Scene.by_name[kwargs["scene"]]
        return (Unanswered if scene.is_queue else UnansweredLog)(scene.broker)


@pytest.mark.parametrize("bounds", [EVENTS, BYTES, EVENTS_OF_STREAM, BYTES_OF_STREAM])
async def test_where_the_broker_is_waited_for_nobody_falls_behind(
    any_scene: Scene, bounds: dict[str, int]
) -> None:
    sink = Sink()
    Unanswered.gate = anyio.Event()
    any_scene.watcher = lambda name: OnUnanswered(any_scene.name, name)  # type: ignore[method-assign]
    # The bounds permit eight messages. "slow" hangs at the eighth, but the first seven wait for `advance`. So the poll
    # waits for the broker, not for "slow".
    gate = any_scene.gates["slow", texts(0)[7]] = anyio.Event()
    async with two(any_scene, sink, settings(0.0, **bounds)) as (_, slow, well):
        any_scene.publish(*texts(0))
        await sink.until(lambda: ("well", texts(0)[7]) in any_scene.opened)
        await some_turns()
        gate.set()
        await some_turns()
        assert slow.subscriber.is_present
        assert well.subscriber.is_present
        assert not has_fallen_behind(sink)
        Unanswered.gate.set()
        await sink.until(lambda: sink.derived(SLOW) == sink.derived(WELL) == texts(0))
    assert not has_fallen_behind(sink)


@pytest.mark.parametrize("bounds", [EVENTS, BYTES, EVENTS_OF_STREAM, BYTES_OF_STREAM])
@pytest.mark.parametrize("turns", [(0, 0), (7, 7), (2, 3)])
async def test_where_both_are_busy_with_what_fills_a_lane_nobody_falls_behind(
    any_scene: Scene, bounds: dict[str, int], turns: tuple[int, int]
) -> None:
    class Busy(Watching):
        async def filter_shared_stream(
            self, shared_stream: AsyncIterator[Any]
        ) -> AsyncIterator[TriggerEvent]:
            async for event in super().filter_shared_stream(shared_stream):
                await some_turns(turns[self.name == "slow"])
                yield event

    sink = Sink()
    any_scene.watcher = lambda name: Busy(any_scene.name, name)  # type: ignore[method-assign]
    # If the subscribers' speeds differ, publish few messages at once. Otherwise the slower subscriber falls behind.
    at_once = 80 if turns[0] == turns[1] else 8
    async with two(any_scene, sink, settings(0.0, **bounds)):
        for first in range(0, 80, at_once):
            any_scene.publish(*texts(0, 80)[first : first + at_once])
            until = texts(0, first + at_once)
            await sink.until(lambda: sink.derived(SLOW) == sink.derived(WELL) == until)  # noqa: B023
    assert not has_fallen_behind(sink)


async def test_the_last_subscriber_of_a_single_large_message_has_the_overflow_grace(
    any_scene: Scene,
) -> None:
    """The last subscriber of a single message is not necessarily slow."""
    sink = Sink()
    gate = any_scene.gates["slow", LARGE] = anyio.Event()
    async with two(any_scene, sink, settings(60.0, **BYTES)) as (_, slow, _):
        any_scene.publish(LARGE, *texts(0))
        await sink.until(lambda: sink.derived(WELL) == [LARGE])
        await some_turns()
        assert slow.subscriber.is_present
        gate.set()
        await sink.until(lambda: len(sink.derived(SLOW)) == len(sink.derived(WELL)) == 41)
    assert not has_fallen_behind(sink)


@pytest.mark.parametrize("bounds", [EVENTS, BYTES, EVENTS_OF_STREAM, BYTES_OF_STREAM])
async def test_where_all_hang_nobody_falls_behind(any_scene: Scene, bounds: dict[str, int]) -> None:
    sink = Sink()
    gates = [anyio.Event(), anyio.Event()]
    any_scene.gates = {("slow", texts(0)[0]): gates[0], ("well", texts(0)[1]): gates[1]}
    async with two(any_scene, sink, settings(0.0, **bounds)) as (_, slow, well):
        any_scene.publish(*texts(0))
        await sink.until(lambda: ("well", texts(0)[1]) in any_scene.opened)
        await some_turns()
        assert slow.subscriber.is_present
        assert well.subscriber.is_present
        for gate in gates:
            gate.set()
        await sink.until(lambda: sink.derived(SLOW) == sink.derived(WELL) == texts(0))
    assert not has_fallen_behind(sink)


@pytest.mark.parametrize("bounds", [EVENTS, BYTES], ids=["events", "bytes"])
async def test_a_lone_subscriber_is_waited_for(any_scene: Scene, bounds: dict[str, int]) -> None:
    sink = Sink()
    gate = any_scene.gates["slow", texts(0)[0]] = anyio.Event()
    context = RuntimeContext(sink, sink, sink, settings=settings(0.0, **bounds))
    async with Manager(context) as manager:
        (slow,) = manager.add(any_scene.specs("slow"))
        any_scene.publish(*texts(0))
        await sink.until(lambda: is_full(manager))
        await some_turns()
        assert slow.subscriber is not None
        assert slow.subscriber.is_present
        gate.set()
        await sink.until(lambda: sink.derived(SLOW) == texts(0))
        assert any_scene.opened.count(("slow", texts(0)[0])) == 1
    assert not has_fallen_behind(sink)


@pytest.mark.parametrize("first_on", ["slow", "well"])
async def test_a_sibling_that_is_behind_in_the_lane_itself_waits_for_nobody_until_it_is_live_there(
    any_scene: Scene, first_on: str
) -> None:
    """If "slow", the only live subscriber, fell behind too, the message would fail, and be delivered again."""
    sink = Sink()
    first, *others = texts(0)
    # "well" falls behind at the first message, and then hangs at it.
    any_scene.fails["well"] = lambda event: event == first and not has_fallen_behind(sink)
    any_scene.gates["slow", others[0]] = gate = anyio.Event()
    async with two(any_scene, sink, settings(0.0, **EVENTS)) as (manager, slow, _):
        any_scene.publish(first)
        await sink.until(lambda: has_fallen_behind(sink))
        any_scene.gates["well", first] = held = anyio.Event()
        await sink.until(lambda: any_scene.opened.count(("well", first)) > 1)
        any_scene.publish(*others)
        await sink.until(lambda: is_full(manager))
        await some_turns()
        assert slow.subscriber.is_present
        (gate if first_on == "slow" else held).set()
        await sink.until(lambda: len(sink.derived(SLOW if first_on == "slow" else WELL)) == 40)
        gate.set()
        held.set()
        await sink.until(lambda: len(sink.derived(SLOW)) == len(sink.derived(WELL)) == 40)
        assert (any_scene.opened.count(("slow", others[0])) > 1) is (first_on == "well")


@pytest.mark.parametrize("kind", [Watching, OnWholeStream], ids=["lane", "poll"])
@pytest.mark.parametrize(
    "bounds", [EVENTS, EVENTS_OF_STREAM, BYTES_OF_STREAM, {"subscriber_queue_size": 4}]
)
async def test_where_all_others_are_behind_one_that_hangs_costs_its_message_no_delivery(
    any_scene: Scene,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[Watching],
    bounds: dict[str, int],
) -> None:
    """If "slow" fell behind too, its message would have failed for all watchers, and the broker would redeliver it."""
    monkeypatch.setattr(any_scene, "watcher", lambda name: kind(any_scene.name, name))
    sink = Sink()
    first, *others = texts(0)
    any_scene.fails["well"] = lambda event: event == first and not has_fallen_behind(sink)
    any_scene.gates["slow", others[0]] = gate = anyio.Event()
    async with two(any_scene, sink, settings(**bounds)) as (_, slow, _):
        any_scene.publish(first)
        await sink.until(lambda: has_fallen_behind(sink))
        any_scene.gates["well", first] = held = anyio.Event()
        await sink.until(lambda: any_scene.opened.count(("well", first)) > 1)
        any_scene.publish(*others)
        await sink.until(lambda: ("slow", others[0]) in any_scene.opened)
        await some_turns()
        assert slow.subscriber.is_present
        gate.set()
        held.set()
        await sink.until(lambda: len(sink.derived(SLOW)) == len(sink.derived(WELL)) == 40)
        assert any_scene.opened.count(("slow", others[0])) == 1


async def test_while_the_service_stops_nobody_falls_behind(any_scene: Scene) -> None:
    sink = Sink()
    gate = any_scene.gates["slow", texts(0)[0]] = anyio.Event()
    async with two(any_scene, sink, settings(0.0, **EVENTS)) as (manager, slow, _):
        any_scene.publish(*texts(0, 3))
        await sink.until(lambda: sink.derived(WELL) == texts(0, 3))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(manager.drain, 5)
            await some_turns()
            # One more message is on its way.
            any_scene.publish(texts(0, 4)[-1])
            await some_turns()
            assert slow.subscriber.is_present
            gate.set()
        await sink.until(lambda: sink.derived(SLOW) == texts(0, 3))
    assert not has_fallen_behind(sink)
