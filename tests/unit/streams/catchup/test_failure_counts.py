"""A watcher's failures are counted for the message that failed, and for no other (contract, rule 18)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from tests.unit.streams.scene import Scene, Sink, always, hosting
from triggerer.domain.events import PendingEvent, WatcherRef
from triggerer.domain.watchers.lane_positions import PositionChange
from triggerer.errors import RowRefused

pytestmark = pytest.mark.rule("18: a message's number of failures survives a restart")

SICK = 1
WATCHER = WatcherRef(SICK, 0)


class Slow(Sink):
    """Withholds the answers for the sick watcher's events of "b", and records the stored numbers of failures."""

    def __init__(self) -> None:
        super().__init__()
        self.is_full_of_parked = True
        self.withheld: list[PendingEvent] = []
        self.counted: list[tuple[int, int]] = []
        """(the sick watcher's offset, the number of its failures there), in the order of the writes."""

    def submit_nowait(self, *given: Any) -> None:
        if isinstance(given[0], PositionChange):
            if given[0].position is not None and given[0].watcher_id == SICK:
                self.counted.append((given[0].position[1], given[0].failures))
        elif len(given) > 1 and given[1].payload == "b" and given[2].watchers[0] == WATCHER:
            self.withheld.append(given[0])
            return
        super().submit_nowait(*given)


@asynccontextmanager
async def failing_behind(scene: Scene, sink: Slow) -> AsyncIterator[tuple[Any, Any]]:
    """Let the sick watcher fall behind at "a", pass "b" (its events stay pending), and fail at "c" often."""
    scene.fails["sick"] = lambda event: bool(event == "a")
    async with hosting(scene, sink, max_deliveries=100) as (manager, sick, _):
        scene.publish("a", "b", "c")
        await sink.until(lambda: scene.broker.committed() == 3)
        scene.fails["sick"] = lambda event: bool(event == "c")
        await sink.until(lambda: scene.opened.count(("sick", "c")) > 5)
        assert len(sink.withheld) == 1
        yield manager, sick


async def test_a_refused_message_does_not_take_the_failures_of_the_next(
    scene: Scene,
) -> None:
    sink = Slow()
    async with failing_behind(scene, sink) as (_, sick):
        (event,) = sink.withheld
        event.complete(RowRefused("too large"))
        # There is no room to park the message, so the lane waits there.
        await sink.until(lambda: "full" in str(sick.catching_up.get(SICK)))
    assert (1, 0) in sink.counted
    assert all(not failures for offset, failures in sink.counted if offset == 1)


async def test_another_trigger_begins_to_count_where_it_begins_to_read(scene: Scene) -> None:
    sink = Slow()
    async with failing_behind(scene, sink) as (manager, sick):
        scene.gates["sick", "b"] = anyio.Event()
        given = scene.opened.count(("sick", "b"))
        manager.remove(sick, on_purpose=False)
        (other, *_) = manager.add(scene.specs("sick"))
        await sink.until(lambda: scene.opened.count(("sick", "b")) > given)
        scene.fails["sick"] = lambda event: bool(event == "b")
        scene.gates.pop(("sick", "b")).set()
        await sink.until(lambda: other.catching_up.get(SICK) is not None)
        await sink.until(lambda: (1, 1) in sink.counted)
    assert max(failures for offset, failures in sink.counted if offset == 1) < 6


async def test_a_message_of_a_lane_that_is_made_anew_has_not_failed_as_often_as_one_before(
    scene: Scene,
) -> None:
    sink = Sink()
    scene.fails["sick"] = lambda event: bool(event == "b")
    async with hosting(scene, sink, max_deliveries=100):
        scene.publish("a", "b")
        await sink.until(lambda: sink.failures.get((SICK, "0"), 0) > 3)
        before = scene.opened.count(("sick", "a"))
        # Replace the log. The watcher was at "b" of the old log, and now reads "a" of the new log.
        scene.broker.identity = "again"
        scene.fails["sick"] = always
        await sink.until(lambda: sink.positions[SICK, "0"] == ["again", 0])
        given = scene.opened.count(("sick", "a")) - before
        assert 0 < sink.failures[SICK, "0"] <= given
