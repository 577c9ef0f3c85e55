"""A watcher of a queue falls behind alone: missed messages are stored and delivered in order (contract, rule 18)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from tests.unit.streams.scene import (
    MAX_DELIVERIES,
    BreakingQueue,
    Scene,
    Selecting,
    Sink,
    Watching,
    context,
    hosting,
)
from triggerer.abc import BaseEventTrigger, SharedStreamProducer
from triggerer.domain.events import EventSource, WatcherRef
from triggerer.domain.watchers.parked import ParkedChange, ParkedState, SetAside, Stored
from triggerer.errors import ParkedFull, RowRefused
from triggerer.streams import Manager


@pytest.fixture
def scene() -> Scene:
    scene = Scene()
    scene.is_queue = True
    return scene


@pytest.mark.rule("18: a message's number of failures survives a restart")
async def test_one_that_had_failed_too_often_is_tried_after_others_when_its_owner_is_another(
    scene: Scene,
) -> None:
    sink = Sink()
    scene.fails["sick"] = lambda event: True
    async with hosting(scene, sink):
        scene.publish("a", "b")
        await sink.until(lambda: sink.stored(1) == ["a", "b"])
    watcher, one, state = sink.messages[1]
    sink.messages[1] = watcher, replace(one, failures=MAX_DELIVERIES), state
    scene.opened.clear()
    scene.fails["sick"] = lambda event: event == "a"
    async with hosting(scene, sink, stored_backlogs=sink.stored_backlogs()):
        await sink.until(lambda: sink.derived(1) == ["b"])
    assert [event for name, event in scene.opened if name == "sick"] == ["b", "a", "b"]


@pytest.mark.rule(
    "18: a queue's messages are stored for a watcher that misses them, and come in order"
)
async def test_a_watcher_that_fails_receives_its_backlog_in_order_and_goes_live(
    scene: Scene,
) -> None:
    sink = Sink()
    scene.fails["sick"] = lambda event: event != "a"
    async with hosting(scene, sink):
        scene.publish("a", *range(300))
        await sink.until(lambda: sink.derived(2) == ["a", *range(300)])
        await sink.until(lambda: scene.broker.committed() == 301)
        assert sink.stored(1) == list(range(300))
        scene.fails.clear()
        await sink.until(lambda: sink.derived(1) == ["a", *range(300)])
        await sink.until(lambda: not sink.messages)
        before = sink.stored_ever
        scene.publish("z")
        await sink.until(lambda: sink.derived(1)[-1] == "z")
        await sink.until(lambda: scene.broker.committed() == 302)
        assert sink.stored_ever == before, "it is live again"


async def test_it_catches_up_with_a_lane_that_moves_on(scene: Scene) -> None:
    sink = Sink()
    scene.fails["sick"] = lambda event: True
    async with hosting(scene, sink) as (_, sick, _):
        number = 0
        for number in range(2_000):
            scene.publish(number)
            await anyio.lowlevel.checkpoint()
            if number == 500:
                scene.fails.clear()
            if number > 500 and not sick.catching_up:
                break
        assert not sick.catching_up
        await sink.until(lambda: len(sink.derived(1)) == number + 1)
        assert sink.derived(1) == list(range(number + 1))
        await sink.until(lambda: not sink.messages)


@pytest.mark.rule("18: a message that fails again and again is parked, if other messages pass")
async def test_a_poison_message_is_set_aside_and_its_lane_goes_on(scene: Scene) -> None:
    sink = Sink()
    scene.fails["sick"] = lambda event: event == "b"
    async with hosting(scene, sink):
        scene.publish("a", "b", "c", "d")
        await sink.until(lambda: sink.derived(1) == ["a", "c", "d"])
        await sink.until(lambda: len(sink.messages) == 1)
    ((watcher, one, state),) = sink.messages.values()
    assert (watcher, one.data, state) == (1, b'["in memory","b"]', ParkedState.SET_ASIDE)
    assert one.failures == MAX_DELIVERIES + 1
    assert one.error == "RuntimeError: cannot take b"


@pytest.mark.rule("18: before a failing message is parked, later messages are tried (probes)")
async def test_a_poison_message_alone_in_its_lane_is_set_aside_since_what_came_last_passes(
    scene: Scene,
) -> None:
    """In a queue without order each message is a lane, so the probe must be a message of another lane."""
    sink = Sink()
    scene.fails["sick"] = lambda event: event == "b"
    async with hosting(scene, sink):
        scene.broker.publish_unordered("a", "b", "c")
        await sink.until(
            lambda: len([1 for one in scene.opened if one == ("sick", "b")]) > MAX_DELIVERIES + 3
        )
        assert [one.data for _, one, _ in sink.messages.values()] == [b'["in memory","b"]']
        scene.broker.publish_unordered("d")
        await sink.until(lambda: sink.messages[1][2] is ParkedState.SET_ASIDE)
    assert sorted(sink.derived(1)) == ["a", "c", "d"]
    assert sink.messages[1][1].error == "RuntimeError: cannot take b"


@pytest.mark.rule("18: if a watcher fails every message, nothing is parked and its lane waits")
async def test_a_watcher_that_takes_nothing_has_nothing_set_aside(scene: Scene) -> None:
    sink = Sink()
    scene.fails["sick"] = lambda event: True
    async with hosting(scene, sink):
        scene.publish(*range(30))
        await sink.until(lambda: sink.stored(1) == list(range(30)))
        given = MAX_DELIVERIES + 25
        await sink.until(lambda: len([1 for name, _ in scene.opened if name == "sick"]) > given)
        assert all(state is ParkedState.KEPT for _, _, state in sink.messages.values())
        assert max(one.failures for _, one, _ in sink.messages.values()) > MAX_DELIVERIES


@pytest.mark.rule("18: after a takeover too, a watcher gets its stored messages first")
async def test_stored_messages_come_first_for_another_owner(scene: Scene) -> None:
    sink = Sink()
    scene.fails["sick"] = lambda event: True
    async with hosting(scene, sink):
        scene.publish("a", "b", "c")
        await sink.until(lambda: scene.broker.committed() == 3)
    scene.fails.clear()
    scene.publish("d")
    async with hosting(scene, sink, stored_backlogs=sink.stored_backlogs()):
        scene.publish("e")
        await sink.until(lambda: sink.derived(1) == ["a", "b", "c", "d", "e"])
        await sink.until(lambda: not sink.messages)


async def test_one_that_cannot_be_made_has_all_kept_for_it(scene: Scene) -> None:
    sink = Sink()
    absent, well = scene.specs("absent", "well")
    make, is_broken = absent.make, True

    def make_later() -> BaseEventTrigger:
        if is_broken:
            raise RuntimeError("a typo")
        return make()

    absent = replace(absent, make=make_later, stream_id="one")
    async with Manager(context(sink)) as manager:
        manager.add([absent, replace(well, stream_id="one")])
        scene.publish("a", "b")
        await sink.until(lambda: scene.broker.committed() == 2)
        assert sink.derived(2) == ["a", "b"]
        assert sink.stored(1) == ["a", "b"]
        is_broken = False
        await sink.until(lambda: sink.derived(1) == ["a", "b"])
        await sink.until(lambda: not sink.messages)


@pytest.mark.rule("18: a trigger's selector decides which missed messages are stored")
async def test_a_selector_is_asked_what_is_to_be_kept(scene: Scene) -> None:
    sink = Sink()
    scene.fails["sick"] = lambda event: event == "sick"
    scene.watcher = lambda name: Selecting(scene.name, name)  # type: ignore[method-assign]
    async with hosting(scene, sink):
        scene.publish("sick", "well", "other", "sick", "well")
        await sink.until(lambda: scene.broker.committed() == 5)
        assert sink.stored_ever == 2
        assert set(sink.stored(1)) == {"sick"}
        scene.fails.clear()
        await sink.until(lambda: sink.derived(1) == ["sick", "sick"])


@pytest.mark.rule("18: a trigger's selector decides which missed messages are stored")
async def test_no_unwanted_message_is_stored_for_a_watcher_that_fails(scene: Scene) -> None:
    """The filter fails while messages that its selector does not want are in the subscriber's queue."""
    sink = Sink()
    scene.fails["sick"] = lambda event: event == "sick"
    scene.watcher = lambda name: Selecting(scene.name, name)  # type: ignore[method-assign]
    async with hosting(scene, sink):
        scene.publish("sick", lane=1)
        scene.publish("well", "well", lane=2)
        await sink.until(lambda: (scene.broker.committed(1), scene.broker.committed(2)) == (1, 2))
        assert sink.stored(1) == ["sick"]
        assert sink.stored_ever == 1


class Undumped(BreakingQueue):
    """A producer that writes no bytes for messages that are numbers."""

    def dump_event(self, event: Any) -> bytes | None:
        return None if isinstance(event, int) else super().dump_event(event)


class WatchingUndumped(Watching):
    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        return Undumped(Scene.by_name[kwargs["scene"]])


@pytest.mark.rule(
    "18: a queue's messages are stored for a watcher that misses them, and come in order"
)
async def test_of_what_is_not_dumped_nothing_is_kept_and_it_counts_as_acked(scene: Scene) -> None:
    sink = Sink()
    scene.fails["sick"] = lambda event: event in ("b", 1)
    scene.watcher = lambda name: WatchingUndumped(scene.name, name)  # type: ignore[method-assign]
    async with hosting(scene, sink):
        # The filter fails at 1, and then at "b". Until it is back, it misses 2 and "c".
        scene.publish("a", 1, "b", 2, "c")
        await sink.until(lambda: scene.broker.committed() == 5)
        await sink.until(lambda: sink.derived(2) == ["a", 1, "b", 2, "c"])
        assert sink.stored(1) == ["b", "c"]
        scene.fails.clear()
        await sink.until(lambda: sink.derived(1) == ["a", "b", "c"])
        scene.publish(3)
        await sink.until(lambda: sink.derived(1) == ["a", "b", "c", 3])
    assert sink.stored_ever == 2
    assert not sink.messages


async def test_a_watcher_that_moves_to_a_siblings_trigger_keeps_its_position(scene: Scene) -> None:
    sink = Sink()
    scene.fails["sick"] = lambda event: True
    sick, well = scene.specs("sick", "well")
    fence = sick.source.fence
    one, two, three = (WatcherRef(number, 0) for number in (1, 2, 3))
    sick = replace(sick, source=EventSource((one, three), fence))
    async with Manager(context(sink)) as manager:
        members = manager.add([sick, well])
        scene.publish("a", "b")
        await sink.until(lambda: sink.stored(1) == sink.stored(3) == ["a", "b"])
        for member in members:
            manager.remove(member, on_purpose=False)
        sources = EventSource((three,), fence), EventSource((one, two), fence)
        manager.add(
            replace(spec, source=source) for spec, source in zip((sick, well), sources, strict=True)
        )
        await sink.until(lambda: sink.derived(1) == ["a", "b"])
        scene.publish("c")
        await sink.until(lambda: sink.derived(1) == ["a", "b", "c"])
        await sink.until(lambda: sink.stored(3) == ["a", "b", "c"])


async def test_a_new_selector_that_is_not_known_yet_has_all_kept(scene: Scene) -> None:
    sink = Sink()
    scene.fails["old"] = lambda event: event == "old"
    scene.watcher = lambda name: Selecting(scene.name, name)  # type: ignore[method-assign]
    is_broken = True
    async with Manager(context(sink)) as manager:
        specs = [replace(spec, stream_id="one") for spec in scene.specs("old", "well")]
        old, _ = manager.add(specs)
        scene.publish("old", "well")
        await sink.until(lambda: sink.stored(1) == ["old"])
        spec = scene.specs("new")[0]

        def make_later() -> BaseEventTrigger:
            if is_broken:
                raise RuntimeError("a typo")
            return spec.make()

        manager.remove(old, on_purpose=False)
        manager.add([replace(spec, make=make_later, stream_id="one")])
        scene.publish("new", "well")
        await sink.until(lambda: sink.derived(2) == ["well", "well"])
        await sink.until(lambda: scene.broker.committed() == 4)
        is_broken = False
        await sink.until(lambda: sink.derived(1) == ["new"])
        await sink.until(lambda: not sink.messages)


@pytest.mark.rule("18: a watcher without siblings leaves its backlog with the broker")
async def test_a_lone_watcher_leaves_its_messages_with_the_broker(scene: Scene) -> None:
    sink = Sink()
    failures = iter([True] * 5)
    scene.fails["sick"] = lambda event: next(failures, False)
    async with hosting(scene, sink, "sick"):
        scene.publish("a", "b")
        await sink.until(lambda: sink.derived(1) == ["a", "b"])
        assert not sink.stored_ever


async def test_a_group_that_restarts_loses_nothing_of_what_lies_behind(scene: Scene) -> None:
    sink = Sink()
    scene.fails["sick"] = lambda event: event in ("b", "c", "d")
    async with hosting(scene, sink):
        scene.publish("a", "b", "c")
        await sink.until(lambda: sink.stored(1) == ["b", "c"])
        scene.is_breaking = True
        scene.publish("d", "e")
        await sink.until(lambda: sink.derived(2)[-1] == "e")
        scene.is_breaking = False
        scene.fails.clear()
        await sink.until(lambda: len(sink.derived(1)) == 5)
        assert sink.derived(1) == ["a", "b", "c", "d", "e"]
        await sink.until(lambda: not sink.messages and scene.broker.committed() == 5)


@pytest.mark.rule(
    "18: at the limit of stored messages the stream pauses, or the producer dead-letters"
)
async def test_at_the_bound_the_stream_is_held_and_its_siblings_name_the_holder(
    scene: Scene,
) -> None:
    sink = Sink()
    scene.fails["sick"] = lambda event: event != "z"
    async with hosting(scene, sink) as (_, sick, well):
        scene.publish("a")
        await sink.until(lambda: sink.stored(1) == ["a"])
        sink.is_full_of_parked = True
        scene.publish(*range(100))
        await sink.until(lambda: well.blocked_by is not None)
        assert well.blocked_by == "sick"
        assert sick.blocked_by is None
        assert scene.broker.committed() == 1
        sink.is_full_of_parked = False
        await sink.until(lambda: scene.broker.committed() == 101)
        assert well.blocked_by is None
        scene.fails.clear()
        await sink.until(lambda: sink.derived(1) == ["a", *range(100)])


async def test_a_message_that_waits_for_room_is_stored_once_however_slow_the_store_is(
    scene: Scene,
) -> None:
    sink = Sink()
    sink.is_full_of_parked = True
    scene.fails["sick"] = lambda event: True
    async with hosting(scene, sink) as (_, _, well):
        scene.publish("a", "b")
        await sink.until(lambda: well.blocked_by == "sick")
        sink.delayed_messages = []
        sink.is_full_of_parked = False
        await sink.until(lambda: bool(sink.delayed_messages))
        # If the runtime did not wait for the store's answer, it would submit the message again during this sleep.
        await anyio.sleep(1.0)
        assert [type(change.what) for change in sink.delayed_messages].count(Stored) == 1
        sink.release_parked()
        await sink.until(lambda: scene.broker.committed() == 2)
        assert sink.stored(1) == ["a", "b"]


async def test_a_stream_that_was_held_and_restarts_is_not_shown_as_held(scene: Scene) -> None:
    sink = Sink()
    scene.fails["sick"] = lambda event: event == "b"
    async with hosting(scene, sink) as (manager, _, well):
        sink.is_full_of_parked = True
        scene.publish("b")
        await sink.until(lambda: well.blocked_by is not None)
        (stream,) = manager.streams.values()
        group = stream.group
        scene.is_breaking, sink.is_full_of_parked = True, False
        scene.fails.clear()
        scene.publish("c")
        await sink.until(lambda: stream.group is not group)
        scene.is_breaking = False
        await sink.until(lambda: scene.broker.committed() == 2)
        assert well.blocked_by is None


async def test_a_deleted_watcher_no_longer_holds_up_the_stream(scene: Scene) -> None:
    sink = Sink()
    sink.is_full_of_parked = True
    scene.fails["sick"] = lambda event: True
    async with hosting(scene, sink) as (manager, sick, well):
        scene.publish("a")
        await sink.until(lambda: well.blocked_by == "sick")
        manager.remove(sick, on_purpose=True)
        scene.publish("b")
        await sink.until(lambda: scene.broker.committed() == 2)
        assert well.blocked_by is None
        assert sink.derived(2) == ["a", "b"]


@pytest.mark.rule(
    "18: at the limit of stored messages the stream pauses, or the producer dead-letters"
)
async def test_at_the_bound_the_producer_is_handed_what_cannot_be_kept(scene: Scene) -> None:
    sink = Sink()
    sink.is_full_of_parked = True
    scene.fails["sick"] = lambda event: event != "z"
    async with hosting(scene, sink, parked_at_bound="dead_letter"):
        with capture_logs() as logs:
            scene.publish("a", "b")
            await sink.until(lambda: sink.derived(2) == ["a", "b"])
            await sink.until(lambda: scene.broker.dead_letters == ["a", "b"])
        assert {line["watcher"] for line in logs if "watcher" in line} == {"sick"}
        scene.publish("z")
        await sink.until(lambda: sink.derived(1) == ["z"])


async def test_a_message_without_room_for_two_watchers_is_one_dead_letter(scene: Scene) -> None:
    sink = Sink()
    sink.is_full_of_parked = True
    scene.fails = {"sick": lambda event: event != "z", "ill": lambda event: event != "z"}
    async with hosting(scene, sink, "sick", "ill", "well", parked_at_bound="dead_letter"):
        with capture_logs() as logs:
            scene.publish("a", "b")
            await sink.until(lambda: scene.broker.committed() == 2)
        assert scene.broker.dead_letters == ["a", "b"]
        letters = [line for line in logs if line["event"] == "a message was dead-lettered"]
        assert [line["watcher"] for line in letters] == ["sick, ill"] * 2
        scene.publish("z")
        await sink.until(lambda: sink.derived(1) == sink.derived(2) == ["z"])
        assert sink.derived(3) == ["a", "b", "z"]


async def test_a_message_that_no_longer_loads_is_parked(scene: Scene) -> None:
    sink = Sink()
    scene.fails["sick"] = lambda event: True
    async with hosting(scene, sink):
        scene.publish("a", "b")
        await sink.until(lambda: sink.stored(1) == ["a", "b"])
    watcher, one, state = sink.messages[1]
    sink.messages[1] = watcher, replace(one, data=b"?"), state
    scene.fails.clear()
    async with hosting(scene, sink, stored_backlogs=sink.stored_backlogs()):
        await sink.until(lambda: sink.derived(1) == ["b"])
        await sink.until(lambda: list(sink.messages) == [1])
    assert sink.messages[1][2] is ParkedState.SET_ASIDE


async def test_a_parked_message_is_given_again_when_it_is_replayed(scene: Scene) -> None:
    sink = Sink()
    scene.fails["sick"] = lambda event: event == "b"
    async with hosting(scene, sink) as (manager, sick, _):
        scene.publish("a", "b", "c")
        await sink.until(lambda: sink.derived(1) == ["a", "c"] and len(sink.messages) == 1)
        scene.fails.clear()
        sink.replay_parked()
        manager.replay_parked(sick, sink.stored_backlogs())
        await sink.until(lambda: sink.derived(1) == ["a", "c", "b"])
        await sink.until(lambda: not sink.messages)


async def test_a_message_replayed_while_later_ones_are_in_flight_is_given(
    scene: Scene,
) -> None:
    """A message that was read before the replay must not count as read after the replay."""
    sink = Sink()
    scene.fails["sick"] = lambda event: event == "b"
    async with Manager(context(sink)) as manager:
        sick, _ = manager.add(scene.specs("sick", "well"))
        scene.publish("a", "b", "c")
        await sink.until(lambda: sink.derived(1) == ["a", "c"] and not sick.catching_up)
        scene.fails["sick"] = lambda event: event in ("x", "y", "z")
        scene.publish("x", "y", "z")
        await sink.until(lambda: sink.stored(1) == ["x", "y", "z"])
        scene.gates["sick", "y"] = gate = anyio.Event()
        scene.fails.clear()
        await sink.until(lambda: ("sick", "y") in scene.opened)
        sink.replay_parked()
        manager.replay_parked(sick, sink.stored_backlogs())
        gate.set()
        await sink.until(lambda: not sink.messages)
    assert sorted(sink.derived(1)) == ["a", "b", "c", "x", "y", "z"]


async def test_a_message_that_is_passed_while_it_is_being_kept_leaves_no_row(scene: Scene) -> None:
    sink = Sink()
    scene.fails["sick"] = lambda event: event == "a"
    async with hosting(scene, sink):
        scene.publish("a")
        await sink.until(lambda: sink.stored(1) == ["a"])
        sink.delayed_messages = []
        scene.publish("b", "c")
        await sink.until(lambda: sink.derived(2) == ["a", "b", "c"])
        scene.fails.clear()
        sink.release_parked()
        await sink.until(lambda: sink.derived(1) == ["a", "b", "c"])
        await sink.until(lambda: not sink.messages and scene.broker.committed() == 3)


async def test_messages_missed_before_a_trigger_came_back_are_not_passed_over(scene: Scene) -> None:
    sink = Sink()
    scene.fails["sick"] = lambda event: event == "a"
    scene.gates["well", "b"] = resolve = anyio.Event()
    scene.gates["sick", "b"] = go_on = anyio.Event()
    async with hosting(scene, sink) as (_, sick, _):
        scene.publish("a")
        await sink.until(lambda: sink.stored(1) == ["a"])
        scene.gates["sick", "a"] = catch_up = anyio.Event()
        scene.fails.clear()
        scene.publish("b", "c", "d")
        await sink.until(lambda: ("well", "b") in scene.opened)
        catch_up.set()
        await sink.until(lambda: ("sick", "b") in scene.opened)
        # The sick watcher's second filter has "b" open. Let the group resolve "b", "c" and "d" before this filter
        # continues.
        scene.returns.add(("sick", "b"))
        resolve.set()
        await sink.until(lambda: scene.broker.committed() == 4)
        go_on.set()
        await sink.until(lambda: sink.derived(1) == ["a", "b", "c", "d"])
        await sink.until(lambda: not sick.catching_up and not sink.messages)


async def test_one_that_it_had_open_while_that_was_being_kept_is_waited_for(scene: Scene) -> None:
    sink = Sink()
    scene.fails["sick"] = lambda event: event == "a"
    scene.gates["well", "b"] = resolve = anyio.Event()
    scene.gates["sick", "b"] = fail = anyio.Event()
    async with hosting(scene, sink) as (_, sick, _):
        scene.publish("a")
        await sink.until(lambda: sink.stored(1) == ["a"])
        scene.fails.clear()
        scene.publish("b", "c")
        await sink.until(
            lambda: ("sick", "b") in scene.opened,
        )
        sink.delayed_messages = []
        resolve.set()
        await sink.until(lambda: sink.derived(2) == ["a", "b", "c"])
        scene.fails["sick"] = lambda event: event == "b"
        fail.set()
        await sink.until(lambda: bool(sick.catching_up[1]))
        scene.fails.clear()
        # Meanwhile the reader looks for the row, which is not stored yet.
        for _ in range(100):
            await anyio.sleep(0.001)
        sink.release_parked()
        await sink.until(lambda: sink.derived(1) == ["a", "b", "c"])
        await sink.until(lambda: not sick.catching_up and not sink.messages)


async def test_a_message_that_waited_for_room_and_was_resolved_meanwhile_leaves_no_row(
    scene: Scene,
) -> None:
    sink = Sink()
    scene.fails["sick"] = lambda event: event == "a"
    scene.gates["well", "b"] = resolve = anyio.Event()
    scene.gates["sick", "b"] = take = anyio.Event()
    async with hosting(scene, sink) as (_, sick, well):
        scene.publish("a")
        await sink.until(lambda: sink.stored(1) == ["a"])
        scene.publish("b")
        await sink.until(lambda: ("well", "b") in scene.opened)
        scene.fails.clear()
        await sink.until(lambda: ("sick", "b") in scene.opened)
        sink.is_full_of_parked = True
        resolve.set()
        await sink.until(lambda: well.blocked_by == "sick")
        take.set()
        await sink.until(lambda: sink.derived(1) == ["a", "b"])
        sink.is_full_of_parked = False
        await sink.until(lambda: scene.broker.committed() == 2)
        await sink.until(lambda: not sick.catching_up)
    assert not sink.messages


async def test_a_message_replayed_while_the_stream_waits_is_given_and_makes_room(
    scene: Scene,
) -> None:
    sink = Sink()
    scene.fails["sick"] = lambda event: event == "b"
    async with hosting(scene, sink) as (manager, sick, well):
        scene.publish("a", "b", "c", "d")
        await sink.until(lambda: sink.derived(1) == ["a", "c", "d"] and not sick.catching_up)
        sink.is_full_of_parked = True
        scene.fails["sick"] = lambda event: event == "e"
        scene.publish("e")
        await sink.until(lambda: well.blocked_by == "sick")
        scene.fails.clear()
        sink.replay_parked()
        manager.replay_parked(sick, sink.stored_backlogs())
        await sink.until(lambda: sink.derived(1) == ["a", "c", "d", "b"])
        await sink.until(lambda: not sink.messages)
        sink.is_full_of_parked = False
        await sink.until(lambda: sink.derived(1) == ["a", "c", "d", "b", "e"])
        await sink.until(lambda: scene.broker.committed() == 5)


class Late(Sink):
    """Has no room for parked messages, and answers late for some events of the first watcher."""

    def __init__(self) -> None:
        super().__init__()
        self.late: list[Any] = []
        self.is_late: Callable[[Any], bool] = lambda payload: payload == "a"

    def submit_nowait(self, *given: Any) -> None:
        if isinstance(given[0], ParkedChange) and isinstance(given[0].what, SetAside):
            given[0].on_done(ParkedFull("full"))
        elif (
            len(given) > 1
            and given[2].watchers[0].watcher_id == 1
            and self.is_late(given[1].payload)
        ):
            self.late.append(given[0])
            self.changed.notify_all()
        else:
            super().submit_nowait(*given)


async def test_a_message_refused_after_going_live_is_dead_lettered_at_the_bound(
    scene: Scene,
) -> None:
    sink = Late()
    scene.fails["sick"] = lambda event: True
    async with hosting(scene, sink, parked_at_bound="dead_letter") as (_, sick, _):
        scene.publish("a")
        await sink.until(lambda: sink.stored(1) == ["a"])
        scene.fails.clear()
        await sink.until(lambda: bool(sink.late) and not sick.catching_up)
        # The store refuses the event only after the watcher has caught up in all lanes.
        sink.late.pop().complete(RowRefused("too large"))
        await sink.until(lambda: scene.broker.dead_letters == ["a"])
        await sink.until(lambda: not sink.messages)


async def test_late_answers_for_an_old_trigger_make_nothing_of_the_new_one_durable(
    scene: Scene,
) -> None:
    sink = Late()
    scene.fails["old"] = lambda event: True
    scene.gates["well", "b"] = resolve = anyio.Event()
    async with hosting(scene, sink, "old", "well") as (manager, old, _):
        scene.publish("a")
        await sink.until(lambda: sink.stored(1) == ["a"])
        scene.publish("b")
        await sink.until(lambda: ("well", "b") in scene.opened)
        scene.fails.clear()
        sink.is_late = lambda payload: True
        await sink.until(lambda: bool(sink.late))
        manager.remove(old, on_purpose=False)
        manager.add(scene.specs("new", "well")[:1])
        await sink.until(lambda: ("new", "b") in scene.opened)
        # The first late event is the old trigger's, from "a". The others are the new trigger's, from "b".
        first, rest = sink.late[0], sink.late[1:]
        first.complete(None)
        sink.delayed_messages = []
        resolve.set()
        await sink.until(lambda: bool(sink.delayed_messages))
        assert [
            change.what.data for change in sink.delayed_messages if isinstance(change.what, Stored)
        ] == [b'["in memory","b"]']
        sink.late = []
        sink.is_late = lambda payload: False
        for event in rest:
            event.complete(None)
        sink.release_parked()
        await sink.until(lambda: not sink.messages and scene.broker.committed() == 2)


@pytest.mark.rule(
    "18: a watcher gets each message of its backlog once, in order, before any newer message"
)
@pytest.mark.parametrize("seed", range(30))
async def test_whatever_fails_each_watcher_has_all_once_and_in_the_order_of_each_lane(
    scene: Scene, seed: int
) -> None:
    random = Random(seed)
    sink = Sink()
    names = ("one", "two", "three")
    lanes = {lane: [f"{lane}-{number}" for number in range(60)] for lane in ("x", "y")}
    sick: set[str] = set()
    for name in names:
        scene.fails[name] = lambda event, name=name: name in sick and random.random() < 0.3  # type: ignore[misc]
    async with hosting(scene, sink, *names, max_deliveries=10_000):
        left = {lane: list(values) for lane, values in lanes.items()}
        while any(left.values()):
            lane = random.choice([one for one, values in left.items() if values])
            for _ in range(random.randint(1, 5)):
                if left[lane]:
                    scene.publish(left[lane].pop(0), lane=lane)
            if random.random() < 0.2:
                sick ^= {random.choice(names)}
            scene.is_breaking = random.random() < 0.05
            if random.random() < 0.1 and sink.delayed_messages is None:
                sink.delayed_messages = []
            elif sink.delayed_messages is not None and random.random() < 0.5:
                sink.release_parked()
            await anyio.sleep(0.001 if random.random() < 0.3 else 0)
        sick.clear()
        scene.is_breaking = False
        if sink.delayed_messages is not None:
            sink.release_parked()
        for number, _ in enumerate(names, 1):
            await sink.until(lambda number=number: len(sink.derived(number)) == 120)  # type: ignore[misc]
            for lane, values in lanes.items():
                derived = [one for one in sink.derived(number) if one.startswith(lane)]
                assert derived == values, (number, lane)
        await sink.until(lambda: not sink.messages)


async def test_a_lane_goes_on_behind_a_message_once_that_is_set_aside(scene: Scene) -> None:
    class Slow(Sink):
        """Holds back parked messages until the test submits them."""

        waiting: ParkedChange | None = None

        def submit_nowait(self, *given: Any) -> None:
            if isinstance(given[0], ParkedChange) and isinstance(given[0].what, SetAside):
                self.waiting = given[0]
            else:
                super().submit_nowait(*given)

    sink = Slow()
    scene.fails["sick"] = lambda event: event == "b"
    async with hosting(scene, sink):
        scene.publish("a", "b", "c", "d")
        await sink.until(lambda: sink.waiting is not None)
        await anyio.sleep(0.3)
        assert sink.derived(1) == ["a"]
        assert sink.waiting is not None
        Sink.submit_nowait(sink, sink.waiting)
        await sink.until(lambda: sink.derived(1) == ["a", "c", "d"])
        await sink.until(lambda: len(sink.messages) == 1)


@pytest.mark.rule(
    "18: a queue's messages are stored for a watcher that misses them, and come in order"
)
async def test_a_message_replayed_as_soon_as_it_is_parked_is_given_again(scene: Scene) -> None:
    class Replaying(Sink):
        """Replays each parked message before the stream's owner learns that the message is parked."""

        def submit_nowait(self, *given: Any) -> None:
            change = given[0]
            if isinstance(change, ParkedChange) and isinstance(change.what, SetAside):

                def answer(error: Exception | None) -> None:
                    self.replay_parked()
                    change.on_done(error)

                super().submit_nowait(replace(change, on_done=answer))
            else:
                super().submit_nowait(*given)

    sink = Replaying()
    scene.fails["sick"] = lambda event: event == "b"
    async with hosting(scene, sink) as (manager, sick, _):
        scene.publish("a", "b", "c")
        await sink.until(lambda: sink.derived(1) == ["a", "c"])
        scene.fails.clear()
        manager.replay_parked(sick, sink.stored_backlogs())
        await sink.until(lambda: sink.derived(1) == ["a", "c", "b"])
        await sink.until(lambda: not sink.messages)


@pytest.mark.rule(
    "18: a queue's messages are stored for a watcher that misses them, and come in order"
)
async def test_a_message_that_an_earlier_group_stored_late_reaches_a_watcher_that_is_behind_again(
    scene: Scene,
) -> None:
    sink = Sink()
    sink.delayed_messages = held = []
    scene.fails["sick"] = lambda event: event == "a"
    async with hosting(scene, sink) as (manager, sick, _):
        scene.publish("a")
        await sink.until(lambda: len(held) == 1)
        (stream,) = manager.streams.values()
        before = stream.group
        scene.fails.clear()
        await sink.until(lambda: sick.subscriber is not None and sick.subscriber.is_present)
        scene.is_breaking = True
        scene.publish("b", lane=1)
        await sink.until(lambda: stream.group not in (None, before))
        scene.is_breaking = False
        # The next group receives "a" again.
        await sink.until(lambda: sink.derived(1) == ["b", "a"] and not sick.catching_up)
        await sink.until(lambda: not stream.behind.backlogs)
        scene.fails["sick"] = lambda event: event == "c"
        scene.publish("c")
        await sink.until(lambda: len(held) == 2)
        scene.fails.clear()
        sink.delayed_messages = None
        sink.submit_nowait(held.pop())
        sink.delayed_messages = held
        # The events of "c" are durable, and its row is about to be deleted.
        await sink.until(lambda: len(held) == 2 and not sick.catching_up)
        sink.release_parked()
        await sink.until(lambda: not sink.messages)


class Unwritable(BreakingQueue):
    """Messages that are called "unwritable" cannot be written as bytes."""

    def dump_event(self, event: Any) -> bytes:
        if event == "unwritable":
            raise ValueError("it cannot be written")
        return super().dump_event(event)


class WatchingUnwritable(Watching):
    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        return Unwritable(Scene.by_name[kwargs["scene"]])


class UnwritableScene(Scene):
    def watcher(self, name: str) -> Watching:
        return WatchingUnwritable(scene=self.name, name=name)


async def test_a_message_that_cannot_be_written_comes_again_and_the_stream_goes_on() -> None:
    scene, sink = UnwritableScene(), Sink()
    scene.fails["sick"] = lambda event: event in ("unwritable", 1)
    async with hosting(scene, sink) as (manager, _, _):
        scene.publish("unwritable", "behind it", lane="a")
        await sink.until(lambda: scene.opened.count(("sick", "unwritable")) > 2)
        (stream,) = manager.streams.values()
        group = stream.group
        scene.publish(*range(3), lane="b")
        await sink.until(lambda: {0, 1, 2} <= {*sink.derived(2)} and sink.stored(1)[:1] == [1])
        scene.fails.clear()
        await sink.until(lambda: {*sink.derived(1)} == {"unwritable", "behind it", 0, 1, 2})
        assert stream.group is group, "it was opened again"
        lanes = "a", "b"
        await sink.until(lambda: [scene.broker.committed(lane) for lane in lanes] == [2, 3])


async def test_what_fails_after_its_stream_was_closed_submits_nothing(scene: Scene) -> None:
    """The lease may have ended by then, so the store would refuse the message."""
    sink = Sink()
    scene.fails["sick"] = lambda event: event != "a"
    async with hosting(scene, sink) as (manager, sick, _):
        scene.publish("a", "b")
        await sink.until(lambda: sink.stored(1) == ["b"])
        scene.gates["sick", "b"] = gate = anyio.Event()
        scene.opened.clear()
        await sink.until(lambda: ("sick", "b") in scene.opened)
        sink.delayed_messages = []
        gate.set()
        manager.abandon(sick)
        await anyio.wait_all_tasks_blocked()
        assert sink.delayed_messages == []
