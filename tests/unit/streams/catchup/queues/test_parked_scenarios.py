"""Scenarios of docs/notes/rules.md about parked messages, on queues, or on queues and logs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import anyio
import pytest

from tests.unit.streams.scene import MAX_DELIVERIES, Scene, Sink, context, hosting
from triggerer.abc import AckTimeout
from triggerer.domain.watchers.parked import ParkedState
from triggerer.streams import Manager, RuntimeContext, RuntimeSettings


@pytest.fixture
def scene(queue_scene: Scene) -> Scene:
    return queue_scene


def bounded(sink: Sink, **bounds: Any) -> RuntimeContext:
    return replace(context(sink), settings=RuntimeSettings(max_deliveries=MAX_DELIVERIES, **bounds))


def aside(sink: Sink) -> list[bytes]:
    return [one.data for _, one, state in sink.messages.values() if state is ParkedState.SET_ASIDE]


@pytest.mark.rule("a replay stores numbers of its own as the position, and messages are missed")
async def test_a_replay_moves_no_place_and_after_a_restart_nothing_is_missed(
    any_scene: Scene,
) -> None:
    """Parked messages have row ids, and a queue's stored messages have numbers.

    A replay must store neither as the watcher's position.
    """
    scene, sink = any_scene, Sink()
    scene.fails["sick"] = lambda event: event == "b"
    async with hosting(scene, sink) as (manager, sick, _):
        scene.publish("a", "b", *range(20))
        await sink.until(lambda: sink.derived(1) == ["a", *range(20)] and len(aside(sink)) == 1)
        scene.fails["sick"] = lambda event: event in ("x", "y", "z")
        scene.publish("x", "y", "z")
        at_x = [scene.broker.identity, 22]
        await sink.until(
            lambda: (
                sink.stored(1) == ["x", "y", "z"]
                if scene.is_queue
                else sink.positions.get((1, "0")) == at_x
            )
        )
        sink.replay_parked()
        manager.replay_parked(sick, sink.stored_backlogs())
        await sink.until(lambda: "b" in sink.derived(1))
        await sink.until(lambda: "z" in sink.derived(2))
        assert sink.positions.get((1, "0")) == (None if scene.is_queue else at_x)
    scene.fails.clear()
    async with hosting(scene, sink, positions=sink.rows(), stored_backlogs=sink.stored_backlogs()):
        scene.publish("end")
        await sink.until(lambda: "end" in sink.derived(1) and not sink.messages)
    assert sink.derived(1) == ["a", *range(20), "b", "x", "y", "z", "end"]


@pytest.mark.rule("a message is redelivered before its parking is durable, and is parked twice")
async def test_a_message_redelivered_while_it_is_being_stored_is_stored_and_given_once(
    scene: Scene,
) -> None:
    sink = Sink()
    scene.fails["sick"] = lambda event: event in ("a", "b")
    sink.delayed_messages = []
    async with Manager(context(sink)) as manager:
        manager.add(scene.specs("sick", "well"))
        scene.publish("a", "b")
        await sink.until(lambda: bool(sink.delayed_messages))
        # The group breaks before the store has answered. The next group receives both messages again.
        scene.is_breaking = True
        sink.release_parked()
        await sink.until(lambda: len([1 for name, _ in scene.opened if name == "well"]) > 2)
        scene.is_breaking = False
        await sink.until(lambda: scene.broker.committed() == 2 and sink.stored(1) == ["a", "b"])
        assert sink.stored_ever == 2
        scene.fails.clear()
        await sink.until(lambda: not sink.messages)
    assert sink.derived(1) == ["a", "b"]


@pytest.mark.rule("a replay without messages never ends, so no other replay can begin")
async def test_a_replay_of_nothing_ends_and_another_can_follow(scene: Scene) -> None:
    sink = Sink()
    scene.fails["sick"] = lambda event: event == "b"
    async with Manager(context(sink)) as manager:
        sick, _ = manager.add(scene.specs("sick", "well"))
        scene.publish("a", "b", "c")
        await sink.until(lambda: sink.derived(1) == ["a", "c"] and len(aside(sink)) == 1)
        lanes = {(one.watcher_id, one.lane) for one in sink.stored_backlogs()}
        assert not lanes
        manager.replay_parked(sick, ())
        scene.publish("d")
        await sink.until(lambda: sink.derived(1) == ["a", "c", "d"])
        sink.replay_parked()
        there = sink.stored_backlogs()
        scene.fails.clear()
        manager.replay_parked(sick, there)
        await sink.until(lambda: not sink.messages)
        # Announce the same replay again. The lane has no stored message left, and must not stay behind.
        manager.replay_parked(sick, there)
        await sink.until(lambda: not sick.catching_up)
        scene.publish("e")
        await sink.until(lambda: sink.derived(1) == ["a", "c", "d", "b", "e"])
        assert not sick.catching_up


@pytest.mark.rule(
    "a message waits in the store for a watcher, and a later message of its lane overtakes it"
)
async def test_later_messages_of_its_lane_follow_it_with_another_owner_too(
    scene: Scene,
) -> None:
    sink = Sink()
    scene.fails["sick"] = lambda event: event == "b"
    async with Manager(context(sink)) as manager:
        manager.add(scene.specs("sick", "well"))
        scene.publish("a", "b", "c")
        await sink.until(lambda: sink.stored(1)[:1] == ["b"] and len(sink.derived(2)) == 3)
    assert "c" not in sink.derived(1)
    scene.fails.clear()
    async with Manager(context(sink)) as manager:
        manager.add(scene.specs("sick", "well", stored_backlogs=sink.stored_backlogs()))
        scene.publish("d")
        await sink.until(lambda: sink.derived(1) == ["a", "b", "c", "d"])
        await sink.until(lambda: not sink.messages)


@pytest.mark.rule(
    "two messages of a lane fail together, and one of them is neither retried nor parked"
)
async def test_of_two_that_fail_together_each_is_tried_and_set_aside(scene: Scene) -> None:
    sink = Sink()
    scene.fails["sick"] = lambda event: event in ("b", "c")
    async with Manager(context(sink)) as manager:
        manager.add(scene.specs("sick", "well"))
        scene.publish("a", "b", "c", "d")
        await sink.until(lambda: sink.derived(1) == ["a", "d"] and len(aside(sink)) == 2)
    assert aside(sink) == [b'["in memory","b"]', b'["in memory","c"]']
    for value in ("b", "c"):
        assert scene.opened.count(("sick", value)) > MAX_DELIVERIES


@pytest.mark.rule("one watcher times out, and its siblings get the message again too")
async def test_one_that_times_out_repeats_no_delivery_for_its_siblings(any_scene: Scene) -> None:
    scene, sink = any_scene, Sink()
    scene.gates["slow", "a"] = anyio.Event()
    async with Manager(bounded(sink, ack_timeout=0.05)) as manager:
        slow, _ = manager.add(scene.specs("slow", "well"))
        scene.publish("a", "b", "c")
        await sink.until(lambda: scene.broker.committed() == 3)
        assert [event for name, event in scene.opened if name == "well"] == ["a", "b", "c"]
        # The slow filter also times out while it catches up.
        await sink.until(lambda: isinstance(slow.catching_up.get(1), AckTimeout))
        assert sink.derived(1) == []
        scene.gates.clear()
        await sink.until(lambda: sink.derived(1) == ["a", "b", "c"] and not slow.catching_up)
        await sink.until(lambda: not (sink.messages or sink.rows()))
    assert [event for name, event in scene.opened if name == "well"] == ["a", "b", "c"]


@pytest.mark.rule("attempts are counted in memory only, so their limit is never reached")
async def test_the_count_of_failures_survives_a_restart(scene: Scene) -> None:
    """Each start allows one more attempt, so the limit is reached only if the count grows from start to start."""
    sink = Sink()
    scene.fails["sick"] = lambda event: event == "b"

    def failures() -> int:
        return max((one.failures for _, one, _ in sink.messages.values()), default=-1)

    scene.publish("a", "b", "c")
    # The first failure is live, and is not counted. The later ones are counted.
    for number in range(MAX_DELIVERIES + 1):
        async with Manager(context(sink)) as manager:
            manager.add(scene.specs("sick", "well", stored_backlogs=sink.stored_backlogs()))
            await sink.until(lambda number=number: failures() >= number)  # type: ignore[misc]
        assert failures() == number
    tried = scene.opened.count(("sick", "b"))
    async with Manager(context(sink)) as manager:
        manager.add(scene.specs("sick", "well", stored_backlogs=sink.stored_backlogs()))
        await sink.until(lambda: bool(aside(sink)))
        await sink.until(lambda: "c" in sink.derived(1))
    assert aside(sink) == [b'["in memory","b"]']
    # Two attempts are possible: before the stored count is read, and after a probe has passed.
    assert scene.opened.count(("sick", "b")) <= tried + 2, "the count began again"
    assert failures() > MAX_DELIVERIES


@pytest.mark.rule("a deleted watcher's rows stay for ever, or block a slot")
async def test_one_that_is_removed_while_it_works_holds_up_nobody(scene: Scene) -> None:
    sink = Sink()
    scene.fails["gone"] = lambda event: True
    scene.gates["gone", "b"] = anyio.Event()
    async with Manager(bounded(sink, max_outstanding=4)) as manager:
        gone, well = manager.add(scene.specs("gone", "well"))
        scene.publish("a", "b")
        await sink.until(lambda: sink.stored(1) == ["a", "b"])
        scene.fails.clear()
        await sink.until(lambda: ("gone", "b") in scene.opened and gone.catching_up != {})
        manager.remove(gone, on_purpose=True)
        stored_before = sink.stored_ever
        scene.publish(*range(20))
        await sink.until(lambda: len(sink.derived(2)) == 22)
        await sink.until(lambda: scene.broker.committed() == 22)
        assert sink.stored_ever == stored_before, "no later message is stored for the watcher"
        assert well.error is None
