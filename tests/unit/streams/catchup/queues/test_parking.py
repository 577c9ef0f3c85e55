"""A message that a watcher cannot process is parked for that watcher alone, and the lane continues (rule 18)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest

from tests.unit.streams.catchup.test_replays import Alone, Fast
from tests.unit.streams.scene import MAX_DELIVERIES, Scene, Sink, Watching, context, hosting
from triggerer.abc import BaseEventTrigger, SharedStreamProducer
from triggerer.domain.events import EventSource, Fence, PendingEvent, WatcherRef
from triggerer.domain.watchers.lane_positions import LanePosition, PositionChange
from triggerer.domain.watchers.parked import ParkedChange, ParkedState
from triggerer.errors import RowRefused
from triggerer.streams import Manager, RuntimeContext, RuntimeSettings, TriggerSpec
from triggerer.testing import InMemoryProducer
from triggerer.testing.clock import VirtualClock


def aside(sink: Sink) -> list[tuple[int, bytes]]:
    return [(watcher, one.data) for watcher, one, _ in sink.messages.values()]


@pytest.mark.rule("18: a message that fails again and again is parked, if other messages pass")
async def test_a_poison_message_is_set_aside_and_its_lane_goes_on(scene: Scene) -> None:
    sink = Sink()
    scene.fails["sick"] = lambda event: event == "b"
    async with hosting(scene, sink):
        scene.publish("a", "b", "c", "d")
        await sink.until(lambda: sink.derived(2) == ["a", "b", "c", "d"])
        await sink.until(lambda: sink.derived(1) == ["a", "c", "d"])
        scene.publish("e")
        await sink.until(lambda: sink.derived(1) == ["a", "c", "d", "e"])
    ((watcher, one, _),) = sink.messages.values()
    assert (watcher, one.data) == (1, b'["in memory","b"]')
    assert one.failures == MAX_DELIVERIES + 1
    assert one.error == "RuntimeError: cannot take b"
    assert "tests/unit/streams/scene.py" in (one.traceback or "")
    assert one.key == f"{scene.broker.identity}/0/1"


@pytest.mark.rule("18: if a watcher fails every message, nothing is parked and its lane waits")
async def test_a_watcher_that_takes_nothing_keeps_all_where_it_is(scene: Scene) -> None:
    """The fault is in the watcher, not in a message. So in the end, only the lane's oldest message is tried."""
    sink = Sink()
    scene.fails["sick"] = lambda event: event != "a"
    async with hosting(scene, sink):
        scene.publish("a", *range(30))
        await sink.until(lambda: len(sink.derived(2)) == 31)
        before = MAX_DELIVERIES + 10 + 5
        await sink.until(lambda: sink.failures.get((1, "0"), 0) > before)
        given = [event for name, event in scene.opened if name == "sick"]
        assert set(given[1:]) == set(range(11)), "ten others were tried"
        assert set(given[-5:]) == {0}
        assert not sink.messages
        scene.fails.clear()
        await sink.until(lambda: sink.derived(1) == ["a", *range(30)])


@pytest.mark.rule(
    "18: a probe stores no events",
    "two messages of a lane fail together, and one of them is neither retried nor parked",
)
async def test_a_try_stores_nothing(scene: Scene) -> None:
    sink = Sink()
    scene.fails["sick"] = lambda event: event in ("b", "d")
    async with hosting(scene, sink):
        scene.publish("a", "b", "c", "d", "e")
        await sink.until(lambda: sink.derived(1) == ["a", "c", "e"])
        await sink.until(lambda: len(sink.messages) == 2)
    assert aside(sink) == [(1, b'["in memory","b"]'), (1, b'["in memory","d"]')]


@pytest.mark.rule("18: if a watcher fails every message, nothing is parked and its lane waits")
async def test_messages_that_it_does_not_want_are_no_sign_that_it_is_well(scene: Scene) -> None:
    """The watcher ignores nine of ten messages, and fails the others because a service is down."""
    sink = Sink()
    scene.ignores = lambda event: event % 10 != 0
    scene.fails["sick"] = lambda event: True
    async with hosting(scene, sink):
        scene.publish(*range(95))
        await sink.until(lambda: len(sink.derived(2)) == 10)
        await sink.until(lambda: sink.failures.get((1, "0"), 0) > MAX_DELIVERIES + 15)
        assert not sink.messages
        scene.fails.clear()
        await sink.until(lambda: sink.derived(1) == list(range(0, 95, 10)))


@pytest.mark.rule("18: before a failing message is parked, later messages are tried (probes)")
async def test_where_its_lane_has_no_other_message_those_of_other_lanes_are_tried(
    scene: Scene,
) -> None:
    sink = Sink()
    scene.fails["sick"] = lambda event: event == "last"
    async with hosting(scene, sink):
        scene.publish("other", lane=1)
        scene.publish("last", lane=0)
        await sink.until(lambda: len(sink.messages) == 1)
    assert aside(sink) == [(1, b'["in memory","last"]')]
    assert sink.derived(1) == ["other"]


@pytest.mark.rule(
    "18: a message's number of failures survives a restart",
    "attempts are counted in memory only, so their limit is never reached",
)
async def test_the_count_of_failures_survives_a_restart(scene: Scene) -> None:
    sink = Sink()
    scene.fails["sick"] = lambda event: event == "b"
    scene.publish("a", "b", "c")
    scene.broker.seek(3)
    row = LanePosition(
        1, "0", [scene.broker.identity, 1], context(sink).now(), failures=MAX_DELIVERIES
    )
    async with hosting(scene, sink, positions=(row,)):
        await sink.until(lambda: sink.derived(1) == ["c"])
    assert [event for name, event in scene.opened if name == "sick"][:2] == ["c", "b"]
    assert aside(sink) == [(1, b'["in memory","b"]')]


@pytest.mark.rule("attempts are counted in memory only, so their limit is never reached")
async def test_of_one_attempt_in_each_life_all_are_counted_together(scene: Scene) -> None:
    sink = Sink()
    scene.fails["sick"] = lambda event: event == "b"
    scene.publish("a", "b", "c")
    scene.broker.seek(3)

    def row() -> LanePosition:
        position = sink.positions.get((1, "0")) or [scene.broker.identity, 1]
        failures = sink.failures.get((1, "0"), 0)
        return LanePosition(1, "0", position, context(sink).now(), failures=failures)

    for number in range(1, MAX_DELIVERIES + 1):
        async with hosting(scene, sink, positions=(row(),)):
            await sink.until(lambda number=number: row().failures >= number)  # type: ignore[misc]
        assert row().failures == number


@pytest.mark.rule(
    "18: a message is parked at once if the store refuses its event, or if the watcher rejects it"
)
async def test_a_message_with_a_refused_event_is_parked_for_its_watcher_alone(scene: Scene) -> None:
    sink = Sink()
    async with hosting(scene, sink):
        sink.refuses = lambda watcher_id, payload: (watcher_id, payload) == (1, "b")
        scene.publish("a", "b", "c")
        await sink.until(lambda: "c" in sink.derived(1) and "c" in sink.derived(2))
        await sink.until(lambda: scene.broker.committed() == 3 and len(sink.messages) == 1)
    ((watcher, one, _),) = sink.messages.values()
    assert (watcher, one.error) == (1, "too large")
    assert sink.derived(1) == ["a", "c"]
    assert sink.derived(2) == ["a", "b", "c"]


@pytest.mark.rule(
    "18: a message is parked at once if the store refuses its event, or if the watcher rejects it"
)
async def test_a_refused_event_of_a_filter_that_failed_since_is_not_lost(
    scene: Scene,
) -> None:
    sink = Sink()
    sink.refuses = lambda watcher_id, payload: (watcher_id, payload) == (1, "b")
    scene.fails["sick"] = lambda event: event == "c"
    async with Manager(context(sink)) as manager:
        scene.publish("a", "b", "c", "d")
        manager.add(scene.specs("sick", "well"))
        await sink.until(lambda: len(sink.derived(2)) == 4)
        scene.fails.clear()
        await sink.until(lambda: {"c", "d"} <= set(sink.derived(1)))
        await sink.until(lambda: len(sink.messages) == 1)
    assert aside(sink) == [(1, b'["in memory","b"]')]


@pytest.mark.rule(
    "18: a message is parked at once if the store refuses its event, or if the watcher rejects it"
)
async def test_a_message_rejected_while_catching_up_is_parked(scene: Scene) -> None:
    sink = Sink()
    scene.fails["sick"] = lambda event: True
    async with hosting(scene, sink):
        scene.publish("a", "b", "c")
        await sink.until(lambda: len(sink.derived(2)) == 3)
        scene.rejects = lambda event: event == "b"
        scene.fails.clear()
        await sink.until(lambda: sink.derived(1) == ["a", "c"])
        await sink.until(lambda: len(sink.messages) == 1)
    assert aside(sink) == [(1, b'["in memory","b"]')]


@pytest.mark.rule("18: the number and the bytes of parked messages have limits")
async def test_at_a_bound_the_lane_waits(scene: Scene) -> None:
    sink = Sink()
    sink.is_full_of_parked = True
    scene.fails["sick"] = lambda event: event == "b"
    async with hosting(scene, sink) as (_, sick, _):
        scene.publish("a", "b", "c")
        await sink.until(lambda: "full" in str(sick.catching_up.get(1)))
        assert sink.positions[1, "0"] == [scene.broker.identity, 1]
        sink.is_full_of_parked = False
        await sink.until(lambda: len(sink.messages) == 1)
        # The broker has advanced meanwhile, so the position's row is deleted.
        await sink.until(lambda: sink.positions[1, "0"] is None)
    assert sorted(sink.derived(1)) == ["a", "c"]


async def test_later_messages_of_a_waiting_lane_are_not_derived_with_each_attempt(
    scene: Scene,
) -> None:
    """Found by the simulation's seed 254."""
    sink = Sink()
    sink.is_full_of_parked = True
    scene.fails["sick"] = lambda event: event == "b"
    async with hosting(scene, sink) as (_, sick, _):
        scene.publish("a", "b", "c")
        await sink.until(lambda: "full" in str(sick.catching_up.get(1)))
        before, sink.delayed_messages = len(scene.opened), []
        await sink.until(lambda: bool(sink.delayed_messages))
        # If the reader did not wait for the store's answer, the filter would get the next message during this sleep.
        await anyio.sleep(0.1)
        assert ("sick", "b") in scene.opened[before:]
        assert ("sick", "c") not in scene.opened[before:]
        before = len(scene.opened)
        sink.release_parked()
        await sink.until(lambda: ("sick", "b") in scene.opened[before:])
        sink.is_full_of_parked = False
        await sink.until(lambda: sorted(sink.derived(1)) == ["a", "c"])


class AnsweringLate(Sink):
    """Refuses the events of "b" when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.unanswered: list[PendingEvent] = []

    def submit_nowait(self, *given: Any) -> None:
        if not isinstance(given[0], PositionChange | ParkedChange) and given[1].payload == "b":
            self.unanswered.append(given[0])
            self.changed.notify_all()
            return
        super().submit_nowait(*given)

    async def refuse(self) -> None:
        """Wait for the next event of "b", and refuse it."""
        await self.until(lambda: bool(self.unanswered))
        self.unanswered.pop().complete(RowRefused("too large"))


def at_first(scene: Scene, sink: Sink) -> tuple[LanePosition, ...]:
    """Publish "a" and "b", advance the broker past them, and return the watcher's position before them.

    The store has no room to park a message.
    """
    sink.is_full_of_parked = True
    scene.publish("a", "b")
    scene.broker.seek(2)
    return (LanePosition(1, "0", [scene.broker.identity, 0], datetime.now(UTC)),)


async def test_a_lane_waits_at_a_refused_message_although_its_watcher_had_caught_up_before(
    scene: Scene,
) -> None:
    """Found by the simulation's seed 118."""
    sink = AnsweringLate()
    positions = at_first(scene, sink)
    async with hosting(scene, sink, "sick", positions=positions) as (_, sick):
        await sink.until(lambda: bool(sink.unanswered))
        scene.publish("c")
        await sink.until(lambda: sink.derived(1) == ["a", "c"])
        assert not sick.catching_up, "it is live"
        for _ in range(3):
            before = len(scene.opened)
            await sink.refuse()
            await sink.until(lambda: bool(sink.unanswered))
            # If the reader did not wait for the store's answer, the filter would get the next message while this test
            # sleeps.
            await anyio.sleep(0.1)
            assert scene.opened[before:] == [("sick", "b")]
            assert 1 in sick.catching_up
        sink.unanswered.pop().complete(None)
        await sink.until(lambda: scene.opened[before + 1 :] == [("sick", "c")])
        await sink.until(lambda: not sick.catching_up)


async def test_a_waiting_lane_that_is_recreated_is_read_from_its_beginning(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The late answer is about a message of the deleted lane, and must not count for the new lane."""
    monkeypatch.setattr("triggerer.streams.catchup.reading.handover._LOOK_UP_ENDS_EVERY_S", 0.0)
    sink = AnsweringLate()
    positions = at_first(scene, sink)
    async with hosting(scene, sink, "sick", positions=positions) as (manager, _):
        await sink.refuse()
        await sink.until(lambda: scene.opened.count(("sick", "b")) == 2)
        await sink.until(lambda: bool(sink.unanswered))
        scene.broker.identity = "anew"
        (catching_up,) = manager.streams[scene.name].behind._catching_up.values()
        catching_up.wake()
        await sink.until(lambda: (1, "anew/0/0", 0) in sink.events)
        sink.unanswered.pop().complete(RowRefused("too large"))


async def test_a_blocked_message_is_tried_again_after_a_growing_delay_by_any_reader(
    scene: Scene,
) -> None:
    sink, clock = AnsweringLate(), VirtualClock()
    positions = at_first(scene, sink)
    slowly = replace(context(sink, clock=clock), restart_first=4.0, restart_longest=1_000.0)
    delays = list[float]()
    async with Manager(slowly) as manager:
        (sick,) = manager.add(scene.specs("sick", positions=positions))
        for _ in range(8):
            await sink.refuse()
            refused_at = clock.monotonic()
            with anyio.fail_after(10):
                while not sink.unanswered:
                    await anyio.wait_all_tasks_blocked()
                    clock.move_to(clock.monotonic() + 0.5)
            delays.append(clock.monotonic() - refused_at)
        await sink.refuse()
        await anyio.wait_all_tasks_blocked()
        assert not sink.unanswered
        # A restart by an operator does not wait for the delay.
        manager.restart(sick)
        await sink.until(lambda: bool(sink.unanswered))
    assert max(delays[:2]) <= 8.0
    assert max(delays) > 100.0


@pytest.mark.rule("18: the number and the bytes of parked messages have limits")
async def test_at_a_bound_it_may_be_dead_lettered(scene: Scene) -> None:
    sink = Sink()
    sink.is_full_of_parked = True
    scene.fails["sick"] = lambda event: event == "b"
    async with hosting(scene, sink, parked_at_bound="dead_letter"):
        scene.publish("a", "b", "c")
        await sink.until(lambda: sink.derived(1) == ["a", "c"])
        await sink.until(lambda: sink.positions[1, "0"] is None)
    assert scene.broker.dead_letters == ["b"]
    assert not sink.messages


@pytest.mark.rule("a replay without messages never ends, so no other replay can begin")
async def test_a_parked_message_is_given_again_when_it_is_replayed(scene: Scene) -> None:
    sink = Sink()
    scene.fails["sick"] = lambda event: event in ("b", "c")
    async with hosting(scene, sink) as (manager, sick, _):
        scene.publish("a", "b", "c", "d")
        await sink.until(lambda: sink.derived(1) == ["a", "d"])
        await sink.until(lambda: len(sink.messages) == 2)
        scene.fails["sick"] = lambda event: event == "c"
        sink.replay_parked()
        manager.replay_parked(sick, sink.stored_backlogs())
        await sink.until(lambda: list(sink.messages) == [2])
        assert sink.derived(1) == ["a", "d", "b"]
        assert aside(sink) == [(1, b'["in memory","c"]')]
        # Announce the replay again, although no message is left to replay. This must have no effect.
        manager.replay_parked(sick, sink.stored_backlogs())
        scene.publish("e")
        await sink.until(lambda: sink.derived(1) == ["a", "d", "b", "e"])
        scene.fails.clear()
        sink.replay_parked()
        manager.replay_parked(sick, sink.stored_backlogs())
        await sink.until(lambda: not sink.messages)
    assert sink.derived(1) == ["a", "d", "b", "e", "c"]


@pytest.mark.parametrize("trigger", [Alone, Fast])
async def test_a_message_replayed_for_a_watcher_without_a_producer_is_parked_again(
    scene: Scene, trigger: type[BaseEventTrigger]
) -> None:
    """The DAG file gives the watcher another trigger after the message was parked."""
    sink = Sink()
    scene.fails["sick"] = lambda event: event == "b"
    async with hosting(scene, sink):
        scene.publish("a", "b", "c")
        await sink.until(lambda: len(sink.messages) == 1)
    sink.replay_parked()
    source = EventSource((WatcherRef(1, 0),), Fence("another", "me", 1))
    async with Manager(context(sink)) as manager:
        (sick,) = manager.add(
            [TriggerSpec("sick", trigger, {}, source, stored_lanes=sink.stored_backlogs())]
        )
        await sink.until(lambda: sick.is_keyed)
        manager.replay_parked(sick, sink.stored_backlogs())
        await sink.until(lambda: sink.messages[1][2] is ParkedState.SET_ASIDE)
        assert sick.error is None


@pytest.mark.rule("messages that fail for ever count as in flight, so the poll stays paused")
async def test_a_message_that_fails_for_ever_is_not_in_flight_for_its_siblings(
    any_scene: Scene,
) -> None:
    sink = Sink()
    any_scene.fails["sick"] = lambda event: True
    settings = RuntimeSettings(max_deliveries=MAX_DELIVERIES, max_outstanding=10)
    async with Manager(replace(context(sink), settings=settings)) as manager:
        manager.add(any_scene.specs("sick", "well"))
        for number in range(200):
            any_scene.publish(number, lane=number % 3)
        await sink.until(lambda: len(sink.derived(2)) == 200)
        await sink.until(lambda: sum(any_scene.broker.committed(lane) for lane in range(3)) == 200)
    given = [event for name, event in any_scene.opened if name == "well"]
    assert sorted(given) == list(range(200)), "each once"
    assert sorted(sink.stored(1)) == (list(range(200)) if any_scene.is_queue else [])


@pytest.mark.rule(
    "a message waits in the store for a watcher, and a later message of its lane overtakes it"
)
async def test_later_messages_of_its_lane_follow_it_with_another_owner_too(
    scene: Scene,
) -> None:
    sink = Sink()
    scene.fails["sick"] = lambda event: event == "b"
    async with hosting(scene, sink):
        scene.publish("a", "b", "c")
        await sink.until(lambda: len(sink.derived(2)) == 3 and (1, "0") in sink.positions)
    position = sink.positions[1, "0"]
    assert position is not None
    failures = sink.failures[1, "0"]
    scene.fails.clear()
    row = LanePosition(1, "0", position, context(sink).now(), failures)
    async with hosting(scene, sink, positions=(row,)):
        scene.publish("d")
        await sink.until(lambda: sink.derived(1) == ["a", "b", "c", "d"])
    assert not sink.messages


async def test_where_nothing_can_be_set_aside_what_is_rejected_is_passed(scene: Scene) -> None:
    sink = Sink()
    scene.fails["sick"] = lambda event: True
    without_parked = RuntimeContext(sink, sink, restart_first=0.01, restart_longest=0.01)
    async with Manager(without_parked) as manager:
        manager.add(scene.specs("sick", "well"))
        scene.publish("a", "b", "c")
        await sink.until(lambda: len(sink.derived(2)) == 3)
        scene.rejects = lambda event: event == "b"
        scene.fails.clear()
        await sink.until(lambda: sink.derived(1) == ["a", "c"])


class ManyLanes(InMemoryProducer):
    """Has a hundred empty lanes."""

    async def find_positions(self, start: datetime | None) -> Mapping[Hashable, list[Any]]:
        empty: dict[Hashable, list[Any]] = {n: [self._broker.identity, 0] for n in range(1, 101)}
        return empty | dict(await super().find_positions(start))


class WatchingManyLanes(Watching):
    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        return ManyLanes(Scene.by_name[kwargs["scene"]].broker)


class ManyLanesScene(Scene):
    def watcher(self, name: str) -> Watching:
        return WatchingManyLanes(scene=self.name, name=name)


@pytest.mark.rule("18: a lane that waits delays no other lane")
async def test_no_message_is_waited_for_in_lanes_that_are_empty() -> None:
    """An earlier version waited in each empty lane, so it was late in the lanes that had messages."""
    scene, sink = ManyLanesScene(), Sink()
    scene.fails["sick"] = lambda event: event == "poison"
    scene.publish("poison", lane=0)
    scene.publish("other", lane=200)
    async with hosting(scene, sink):
        await sink.until(lambda: sink.derived(1) == ["other"] and len(sink.messages) == 1)
