"""A new group relies on nothing that the earlier group knew."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest

from tests.unit.streams.scene import Breaking, Scene, Sink, Watching, hosting
from triggerer.abc import AdvanceItem
from triggerer.domain.watchers.lane_positions import LanePosition, PositionChange
from triggerer.domain.watchers.parked import ParkedChange
from triggerer.streams.catchup.processing.catch_up_tasks import CatchUpTasks

SICK, WELL = 1, 2


class Telling(Scene):
    """A scene that can tell the ends of its lanes, and can make one advance raise."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0
        self.may_tell = anyio.Event()

    def watcher(self, name: str) -> Watching:
        return WatchingTelling(scene=self.name, name=name)


class TellingProducer(Breaking):
    scene: Telling

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        try:
            await super().advance(batch)
        finally:
            self.scene.is_breaking = False

    async def find_positions(self, start: datetime | None) -> Any:
        found = await super().find_positions(start)
        self.scene.looks += 1
        await self.scene.may_tell.wait()
        return found


class WatchingTelling(Watching):
    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> TellingProducer:
        return TellingProducer(Scene.by_name[kwargs["scene"]])


@pytest.mark.rule("18: after catch-up a watcher goes live without a gap")
async def test_where_a_lane_ended_in_the_group_before_is_not_where_it_ends() -> None:
    """An earlier version missed the messages that the previous group broadcast after looking up the lane's end."""
    scene, sink = Telling(), Sink()
    scene.publish("g", lane="x")
    scene.broker.seek(1, lane="x")
    row = LanePosition(SICK, '"x"', [scene.broker.identity, 0], datetime.now(UTC))
    gate = scene.gates["sick", "g"] = anyio.Event()
    async with hosting(scene, sink, positions=(row,)) as (manager, _, _):
        # The watcher hangs in one lane and falls behind in another, whose end it then knows.
        await sink.until(lambda: ("sick", "g") in scene.opened and scene.looks == 1)
        scene.fails["sick"] = lambda event: event == "bad"
        scene.publish("bad", lane="y")
        await sink.until(lambda: (SICK, '"y"') in sink.positions)
        scene.may_tell.set()
        (stream,) = manager.streams.values()
        backlog = stream.behind.backlogs.find("y", SICK)
        await sink.until(lambda: backlog.end is not None)
        scene.publish(*range(200), lane="y")
        await sink.until(lambda: scene.broker.committed("y") == 201)
        # The group ends. In the next group the broker does not tell the ends at once.
        scene.may_tell = anyio.Event()
        scene.fails.clear()
        scene.is_breaking = True
        scene.publish("break", lane="z")
        group = stream.group
        await sink.until(lambda: stream.group is not None and stream.group is not group)
        gate.set()
        await sink.until(lambda: "bad" in sink.derived(SICK) and scene.looks > 1)
        scene.may_tell.set()
        scene.publish(200, lane="y")
        await sink.until(lambda: 200 in sink.derived(SICK))
        assert [one for one in sink.derived(SICK) if isinstance(one, int)] == list(range(201))


class Holding(Sink):
    """Holds back the events that a watcher derives from some messages."""

    def __init__(self, watcher_id: int, payloads: Sequence[Any]) -> None:
        super().__init__()
        self._what = watcher_id, payloads
        self.waiting: list[tuple[Any, ...]] = []
        self.is_holding = False

    def submit_nowait(self, *given: Any) -> None:
        watcher_id, payloads = self._what
        if (
            self.is_holding
            and not isinstance(given[0], PositionChange | ParkedChange)
            and given[2].watchers[0].watcher_id == watcher_id
            and given[1].payload in payloads
        ):
            self.waiting.append(given)
            self.changed.notify_all()
        else:
            super().submit_nowait(*given)

    def store(self, count: int) -> None:
        stored, self.waiting = self.waiting[:count], self.waiting[count:]
        for given in stored:
            super().submit_nowait(*given)


@pytest.mark.rule(
    "18: a queue's messages are stored for a watcher that misses them, and come in order"
)
async def test_answers_for_an_earlier_group_move_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two groups number messages differently. In an earlier version, a late answer moved a position to the earlier
    group's number, and messages were skipped.
    """
    missed = ["bad", "b1", "b2", "b3"]
    scene.is_queue, sink = True, Holding(SICK, missed)
    async with hosting(scene, sink) as (manager, _, _):
        scene.publish(*range(10))
        await sink.until(lambda: scene.broker.committed() == 10)
        scene.fails["sick"] = lambda event: event == "bad"
        scene.publish("bad")
        await sink.until(lambda: sink.stored(SICK) == missed[:1])
        scene.publish(*missed[1:])
        await sink.until(lambda: sink.stored(SICK) == missed and scene.broker.committed() == 14)
        sink.is_holding = True
        scene.fails.clear()
        await sink.until(lambda: len(sink.waiting) == 4)

        def mark_open(behind: CatchUpTasks, state: Any) -> None:
            # Store the event after `mark_open`, and before catch-up begins.
            asyncio.get_running_loop().call_soon(sink.store, 1)
            opened(behind, state)

        opened = CatchUpTasks.mark_open
        monkeypatch.setattr(CatchUpTasks, "mark_open", mark_open)
        gate = scene.gates["sick", "b1"] = anyio.Event()
        (stream,) = manager.streams.values()
        group = stream.group
        scene.is_breaking = True
        scene.publish("another", lane=7)
        await sink.until(lambda: len(sink.waiting) == 3)
        scene.is_breaking = False
        await sink.until(lambda: stream.group is not None and stream.group is not group)
        scene.publish("c0", "c1", "c2")
        await sink.until(lambda: "c2" in sink.derived(WELL))
        sink.is_holding = False
        sink.store(4)
        gate.set()
        scene.publish("d")
        await sink.until(lambda: "d" in sink.derived(SICK))
        derived = [one for one in sink.derived(SICK) if one in (*missed, "c0", "c1", "c2", "d")]
        assert derived == [*missed, "c0", "c1", "c2", "d"]
