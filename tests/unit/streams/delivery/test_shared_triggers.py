"""A trigger that serves several watchers, some of them added later."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import anyio
import pytest
from structlog.testing import capture_logs

from tests.unit.streams.scene import Scene, Sink, context
from triggerer.abc import BaseEventTrigger
from triggerer.domain.events import EventSource, WatcherRef
from triggerer.domain.watchers.lane_positions import LanePosition
from triggerer.streams import Manager
from triggerer.streams.supervision.member import TriggerSpec


class _Maker:
    """Makes a trigger, unless its code is broken."""

    def __init__(self, spec: TriggerSpec) -> None:
        self._spec = spec
        self.is_broken = False

    def make(self) -> BaseEventTrigger:
        if self.is_broken:
            raise RuntimeError("a typo")
        return self._spec.make()


@pytest.mark.rule(
    "11: a sibling's success never commits a message that a watcher in back-off has not seen"
)
async def test_a_watcher_added_to_a_trigger_that_just_failed_misses_no_later_message(
    any_scene: Scene,
) -> None:
    sink = Sink()
    shared, well = any_scene.specs("shared", "well")
    both = EventSource((WatcherRef(1, 0), WatcherRef(3, 0)), shared.source.fence)
    maker = _Maker(shared)
    async with Manager(context(sink)) as manager:
        member, _ = manager.add([replace(shared, make=maker.make), well])
        any_scene.publish("a")
        await sink.until(lambda: sink.derived(1) == sink.derived(2) == ["a"])
        (stream,) = manager.streams.values()
        assert stream.group is not None
        assert member.subscriber is not None
        maker.is_broken = True
        stream.group.subscribers.fail(member.subscriber, RuntimeError("too slow"))
        # The member's task has had no turn since the failure.
        manager.replace_source(member, both, name="eu, us")
        any_scene.publish("b")
        await sink.until(lambda: any_scene.broker.committed() == 2)
        assert sink.derived(3) == []
        maker.is_broken = False
        await sink.until(lambda: sink.derived(1) == ["a", "b"])
        await sink.until(lambda: sink.derived(3) == ["b"])


async def test_a_shared_trigger_is_named_after_the_watchers_that_it_serves_now(
    scene: Scene,
) -> None:
    sink = Sink()
    shared, well = scene.specs("shared", "well")
    another = EventSource((WatcherRef(3, 0),), shared.source.fence)
    maker = _Maker(shared)
    async with Manager(context(sink)) as manager:
        member, _ = manager.add([replace(shared, make=maker.make), well])
        scene.publish("a")
        await sink.until(lambda: sink.derived(1) == sink.derived(2) == ["a"])
        (stream,) = manager.streams.values()
        assert stream.group is not None
        assert member.subscriber is not None
        manager.replace_source(member, another, name="orders/us")
        maker.is_broken = True
        with capture_logs() as logs:
            stream.group.subscribers.fail(member.subscriber, RuntimeError("too slow"))
            await sink.until(lambda: "a typo" in str(member.error))
        named = {log["trigger"] for log in logs if log["event"] == "trigger failed"}
        assert named == {"orders/us"}


@pytest.mark.rule("18: after catch-up a watcher goes live without a gap")
async def test_a_caught_up_watcher_receives_the_next_events_of_the_shared_trigger(
    scene: Scene,
) -> None:
    sink = Sink()
    shared, well = scene.specs("shared", "well")
    both = EventSource((WatcherRef(1, 0), WatcherRef(3, 0)), shared.source.fence)
    scene.publish("a")
    stands = LanePosition(1, "0", [scene.broker.identity, 0], datetime.now(UTC))
    async with Manager(context(sink)) as manager:
        manager.add([replace(shared, source=both, positions=(stands,)), well])
        await sink.until(lambda: sink.derived(1) == sink.derived(3) == ["a"])
        # No watcher is behind now.
        await sink.until(lambda: sink.positions.get((1, "0")) is None)
        scene.publish("b")
        await sink.until(lambda: sink.derived(3) == ["a", "b"])
        assert sink.derived(1) == ["a", "b"]


@pytest.mark.rule("18: the broker advances only after the watcher's position is stored")
async def test_a_shared_trigger_waits_until_the_backlog_of_its_other_watcher_is_durable(
    scene: Scene,
) -> None:
    sink = Sink()
    shared, well = scene.specs("shared", "well")
    both = EventSource((WatcherRef(1, 0), WatcherRef(3, 0)), shared.source.fence)
    fence = shared.source.fence
    assert fence is not None
    async with Manager(context(sink)) as manager:
        manager.add([replace(shared, source=both), well])
        scene.publish("a")
        await sink.until(lambda: scene.broker.committed() == 1)
        (stream,) = manager.streams.values()
        # A group that ended while a position was being written would leave this state.
        sink.delayed_positions = []
        place, now = [scene.broker.identity, 1], datetime.now(UTC)
        stream.behind.backlogs.fall_behind(WatcherRef(1, 0), 0, place, fence, now, lambda _: None)
        scene.publish("b")
        await sink.until(lambda: sink.derived(2) == ["a", "b"])
        await anyio.sleep(0.1)
        assert scene.broker.committed() == 1
        sink.release()
        await sink.until(lambda: scene.broker.committed() == 2)
        await sink.until(lambda: sink.derived(1) == sink.derived(3) == ["a", "b"])
