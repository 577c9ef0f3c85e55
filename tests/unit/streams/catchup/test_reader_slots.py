"""Reader slots: a reader that is idle or stuck does not keep other readers from reading."""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest

from tests.unit.streams.scene import Breaking, Scene, Sink, Watching, context
from triggerer.abc import SharedStreamProducer
from triggerer.domain.watchers.lane_positions import LanePosition
from triggerer.streams import Manager
from triggerer.streams.catchup.processing import catch_up_tasks
from triggerer.streams.catchup.reading import backlog_reader, reader_slots
from triggerer.streams.catchup.reading.reader_slots import ReaderSlots
from triggerer.streams.clock import SystemClock

IDLE_S = 0.02


class WithoutEnds(Breaking):
    find_positions = SharedStreamProducer.find_positions


class WithEndsThatFail(Breaking):
    async def find_positions(self, start: datetime | None) -> Mapping[Hashable, list[Any]]:
        raise RuntimeError("one partition has no leader")


class Slow(WithoutEnds):
    """A producer that needs ten times as long for each connection as an idle reader keeps its slot."""

    async def read_lane(self, lane: Hashable, position: Any) -> AsyncIterator[Any]:
        await anyio.sleep(10 * IDLE_S)
        async for event in super().read_lane(lane, position):
            yield event


class WatchingWithoutEnds(Watching):
    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        scene = Scene.by_name[kwargs["scene"]]
        assert isinstance(scene, SceneWithoutEnds)
        return scene.producer(scene)


class SceneWithoutEnds(Scene):
    """Each watcher is behind in the lane with the watcher's number, from the lane's first message on.

    The ends of the lanes are unknown, so no watcher goes live before a broadcast.
    """

    producer: type[Breaking] = WithoutEnds

    def watcher(self, name: str) -> Watching:
        return WatchingWithoutEnds(scene=self.name, name=name)

    def add_lane(self, number: int, *values: Any, committed: int | None = None) -> None:
        self.publish(*values, lane=number)
        self.broker.seek(len(values) if committed is None else committed, lane=number)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> SceneWithoutEnds:
    monkeypatch.setattr(backlog_reader, "_IDLE_S", IDLE_S)
    return SceneWithoutEnds()


@asynccontextmanager
async def member(scene: SceneWithoutEnds, sink: Sink, count: int) -> AsyncIterator[Any]:
    rows = tuple(
        LanePosition(number, str(number), [scene.broker.identity, 0], datetime.now(UTC))
        for number in range(1, count + 1)
    )
    specs = scene.specs(*(f"w{number}" for number in range(1, count + 1)), positions=rows)

    async with Manager(context(sink)) as manager:
        yield manager, lambda *numbers: manager.add([specs[number - 1] for number in numbers])


@pytest.mark.rule("18: a lane that waits delays no other lane")
@pytest.mark.parametrize("producer", [WithoutEnds, WithEndsThatFail])
async def test_a_watcher_that_waits_at_the_end_of_a_lane_keeps_no_other_from_reading(
    scene: SceneWithoutEnds, producer: type[Breaking], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty watchers share eight reader slots. In an earlier version, the first eight watchers kept their slots while
    they waited at the ends of their lanes.
    """
    monkeypatch.setattr(scene, "producer", producer)
    sink, numbers = Sink(), range(1, 21)
    for number in numbers:
        scene.add_lane(number, f"a{number}", f"b{number}")
    async with member(scene, sink, len(numbers)) as (_, host):
        host(*numbers)
        await sink.until(lambda: all(sink.derived(n) == [f"a{n}", f"b{n}"] for n in numbers))
        for number in numbers:
            # A broadcast wakes the reader that gave its slot up.
            scene.publish(f"c{number}", lane=number)
        await sink.until(lambda: all(len(sink.derived(n)) == 2 + len(numbers) for n in numbers))
    assert len(scene.opened) == len(numbers) * (2 + len(numbers))


async def test_a_log_that_answers_late_is_read_all_the_same(scene: SceneWithoutEnds) -> None:
    """In an earlier version, a reader whose log answered late assumed the end of the log, and paused for minutes."""
    scene.producer = Slow
    sink, numbers = Sink(), range(1, 21)
    for number in numbers:
        scene.add_lane(number, "a", "b")
    async with member(scene, sink, len(numbers)) as (_, host):
        host(*numbers)
        await sink.until(lambda: all(sink.derived(n) == ["a", "b"] for n in numbers))


@pytest.mark.rule("18: a lane that waits delays no other lane")
async def test_a_place_is_had_at_once_where_another_only_waits(
    scene: SceneWithoutEnds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catch_up_tasks, "_READERS", 1)
    sink = Sink()
    for number in (1, 2):
        scene.add_lane(number, "a", "b")
    async with member(scene, sink, 2) as (_, host):
        host(1)
        await sink.until(lambda: sink.derived(1) == ["a", "b"])
        await anyio.sleep(3 * IDLE_S)
        # From now on, the waiting reader's idle time does not end during this test.
        monkeypatch.setattr(backlog_reader, "_IDLE_S", 60)
        await anyio.sleep(3 * IDLE_S)
        host(2)
        await sink.until(lambda: sink.derived(2) == ["a", "b"])
        scene.publish("c", lane=1)
        await sink.until(lambda: sink.derived(1) == ["a", "b", "c"])


@pytest.mark.rule("18: a lane that waits delays no other lane")
async def test_a_stuck_reader_keeps_no_other_watcher_from_reading(
    scene: SceneWithoutEnds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catch_up_tasks, "_READERS", 1)
    monkeypatch.setattr(reader_slots, "_STUCK_S", 0.05)
    sink, numbers = Sink(), range(60)
    scene.add_lane(1, *numbers)
    scene.add_lane(2, "a", "b")
    scene.gates["w1", 3] = stuck = anyio.Event()
    async with member(scene, sink, 2) as (_, host):
        host(1)
        await sink.until(lambda: ("w1", 3) in scene.opened)
        host(2)
        await sink.until(lambda: sink.derived(2) == ["a", "b"])
        assert sink.derived(1) == [0, 1, 2]
        stuck.set()
        await sink.until(lambda: len(sink.derived(1)) == len(numbers))
    assert [event for name, event in scene.opened if name == "w1"] == list(numbers)


@pytest.mark.parametrize("is_stuck", [False, True])
async def test_a_lane_that_gave_its_slot_up_asks_for_one_after_a_while(
    scene: SceneWithoutEnds, monkeypatch: pytest.MonkeyPatch, is_stuck: bool
) -> None:
    """Otherwise the lane would wait for a broadcast in the lane, or for a free slot. Either may never come."""
    monkeypatch.setattr(catch_up_tasks, "_READERS", 1)
    monkeypatch.setattr(backlog_reader, "_LONGEST_WITHOUT_SLOT_S", 0.1)
    monkeypatch.setattr(reader_slots, "_STUCK_S", 0.05)
    sink = Sink()
    scene.add_lane(1, "a", "b")
    scene.add_lane(2, "a", committed=100)
    if is_stuck:
        scene.gates["w1", "b"] = anyio.Event()
    async with member(scene, sink, 2) as (_, host):
        host(2)
        await sink.until(lambda: sink.derived(2) == ["a"])
        host(1)
        await sink.until(lambda: ("w1", "b") in scene.opened)
        scene.publish("b", lane=2)
        await sink.until(lambda: sink.derived(2) == ["a", "b"])


async def test_places_are_given_in_order_and_none_is_lost_to_one_who_waits_no_more() -> None:
    readers, got = ReaderSlots(1, SystemClock()), list[int]()

    async def read(number: int, scope: anyio.CancelScope) -> None:
        with scope:
            reading = await readers.begin(lambda: None)
            got.append(number)
            reading.end()

    first = await readers.begin(lambda: None)
    scopes = [anyio.CancelScope() for _ in range(4)]
    async with anyio.create_task_group() as tasks:
        for number, scope in enumerate(scopes):
            tasks.start_soon(read, number, scope)
        await anyio.wait_all_tasks_blocked()
        assert readers.are_wanted
        scopes[0].cancel()
        first.end()
        first.end()
        # By now this task has the slot, but it has not run yet.
        scopes[1].cancel()
    assert got[-2:] == [2, 3]
    assert readers.is_free
    assert not readers.are_wanted


async def test_a_watcher_that_waits_at_the_end_of_a_lane_receives_replayed_messages(
    scene: SceneWithoutEnds,
) -> None:
    sink = Sink()
    scene.add_lane(1, "a", "poison", "b")
    scene.rejects = lambda event: event == "poison"
    async with member(scene, sink, 1) as (manager, host):
        (one,) = host(1)
        await sink.until(lambda: sink.derived(1) == ["a", "b"])
        await anyio.sleep(3 * IDLE_S)
        scene.rejects = lambda event: False
        sink.replay_parked()
        manager.replay_parked(one, sink.stored_backlogs())
        await sink.until(lambda: sink.derived(1) == ["a", "b", "poison"])
