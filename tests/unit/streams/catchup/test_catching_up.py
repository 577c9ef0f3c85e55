"""Falling behind alone (contract, rule 18), on a log in memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from tests.unit.streams.scene import (
    Scene,
    Selecting,
    Sink,
    Watching,
    always,
    context,
    hosting,
    payloads_of,
)
from triggerer.abc import AckTimeout, AdvanceItem, SharedStreamProducer, TriggerEvent
from triggerer.backoff import Backoff
from triggerer.domain.events import EventSource, Fence, WatcherRef
from triggerer.domain.watchers.lane_positions import LanePosition, PositionChange
from triggerer.streams import Manager, RuntimeContext, TriggerSpec
from triggerer.streams.clock import SystemClock
from triggerer.testing import InMemoryProducer, StreamHarness
from triggerer.testing.memory_broker import InMemoryMessage


def shown_backlog(scene: Scene, first: int, end: int) -> dict[Any, Any]:
    """Return what the runtime shows of a backlog from `first` up to `end`: the position in a log, or a queue's
    messages."""
    return {0: list(range(first, end)) if scene.is_queue else [scene.broker.identity, first]}


@pytest.mark.rule("18: while a watcher is behind, its siblings continue and the broker advances")
async def test_one_that_raises_costs_its_sibling_nothing(any_scene: Scene) -> None:
    any_scene.fails["sick"] = always
    async with StreamHarness(catch_up=True) as streams:
        well = await streams.add(any_scene.watcher("well"))
        sick = await streams.add(any_scene.watcher("sick"))
        any_scene.publish(*range(10))
        await streams.quiesce()
        assert payloads_of(well) == list(range(10))
        assert any_scene.broker.committed() == 10
        assert sick.behind == shown_backlog(any_scene, 0, 10)
        assert isinstance(sick.error, RuntimeError)
        assert well.behind == {}


@pytest.mark.rule("7: during catch-up the ack timeout begins when the filter gets the message")
async def test_one_that_hangs_while_it_catches_up_is_overdue_one_timeout_after_it_was_given_the_message(
    any_scene: Scene,
) -> None:
    any_scene.fails["sick"] = always
    async with StreamHarness(catch_up=True, ack_timeout=10) as streams:
        sick = await streams.add(any_scene.watcher("sick"))
        well = await streams.add(any_scene.watcher("well"))
        any_scene.publish(*range(3))
        await streams.quiesce()
        # By now the broadcast lies back much longer than the ack timeout.
        await streams.sleep(100)
        any_scene.fails.clear()
        any_scene.gates["sick", 0] = anyio.Event()
        await streams.restart(sick)
        await streams.sleep(9.9)
        assert any_scene.opened[-1] == ("sick", 0)
        assert (sick.error, payloads_of(sick)) == (None, [])
        await streams.sleep(0.2)
        assert isinstance(sick.error, AckTimeout)
        assert sick.behind == shown_backlog(any_scene, 0, 3)
        # The sibling and the next filter still have their full time.
        assert (well.error, payloads_of(well)) == (None, [0, 1, 2])
        any_scene.gates["sick", 0].set()
        await streams.restart(sick)
        await streams.sleep(5)
        assert (sick.error, payloads_of(sick)) == (None, [0, 1, 2])


@pytest.mark.rule(
    "18: a watcher gets each message of its backlog once, in order, before any newer message"
)
async def test_when_it_is_mended_it_gets_what_it_missed_once_and_goes_on_live(
    any_scene: Scene,
) -> None:
    any_scene.fails["sick"] = lambda event: event >= 3
    async with StreamHarness(catch_up=True) as streams:
        well = await streams.add(any_scene.watcher("well"))
        sick = await streams.add(any_scene.watcher("sick"))
        any_scene.publish(*range(10))
        await streams.quiesce()
        assert sick.behind == shown_backlog(any_scene, 3, 10)
        any_scene.fails.clear()
        await streams.restart(sick)
        await streams.quiesce()
        assert payloads_of(sick) == list(range(10))
        assert sick.behind == {}
        any_scene.publish(*range(10, 20))
        await streams.quiesce()
        assert payloads_of(sick) == payloads_of(well) == list(range(20))
        assert any_scene.broker.committed() == 20


@pytest.mark.rule("18: a watcher without siblings leaves its backlog with the broker")
async def test_a_lone_watcher_leaves_the_backlog_with_the_broker(any_scene: Scene) -> None:
    any_scene.fails["alone"] = lambda event: event == 2
    async with StreamHarness(catch_up=True) as streams:
        alone = await streams.add(any_scene.watcher("alone"))
        any_scene.publish(*range(5))
        await streams.quiesce()
        assert alone.behind == {}
        assert any_scene.broker.committed() == 2
        any_scene.fails.clear()
        await streams.restart(alone)
        await streams.quiesce()
        assert payloads_of(alone) == list(range(5))
        assert any_scene.broker.committed() == 5


@pytest.mark.rule("18: a lane that waits delays no other lane")
async def test_it_falls_behind_only_in_the_lanes_in_which_it_missed_something(scene: Scene) -> None:
    scene.fails["sick"] = lambda event: event == "bad"
    async with StreamHarness(catch_up=True) as streams:
        well = await streams.add(scene.watcher("well"))
        sick = await streams.add(scene.watcher("sick"))
        scene.publish("good", lane="a")
        await streams.quiesce()
        scene.publish("bad", "more", lane="b")
        await streams.quiesce()
        assert sick.behind == {"b": [scene.broker.identity, 0]}
        scene.publish("later", lane="a")
        await streams.quiesce()
        # "sick" was absent when "later" was broadcast.
        assert sick.behind == {
            "a": [scene.broker.identity, 1],
            "b": [scene.broker.identity, 0],
        }
        scene.fails.clear()
        await streams.restart(sick)
        await streams.quiesce()
        assert (
            sorted(payloads_of(sick))
            == sorted(payloads_of(well))
            == ["bad", "good", "later", "more"]
        )
        assert sick.behind == {}


@pytest.mark.rule("18: a lane that waits delays no other lane")
async def test_a_lane_that_fails_holds_up_no_other(scene: Scene) -> None:
    scene.fails["sick"] = always
    async with StreamHarness(catch_up=True) as streams:
        await streams.add(scene.watcher("well"))
        sick = await streams.add(scene.watcher("sick"))
        scene.publish("bad", lane="a")
        scene.publish(1, 2, lane="b")
        await streams.quiesce()
        scene.fails["sick"] = lambda event: event == "bad"
        for _ in range(3):
            await streams.restart(sick)
            await streams.quiesce()
        assert payloads_of(sick) == [1, 2]
        assert sick.behind == {"a": [scene.broker.identity, 0]}


async def test_siblings_with_selectors_that_a_message_does_not_concern_have_acked_it(
    scene: Scene,
) -> None:
    scene.fails["x"] = always
    async with StreamHarness(catch_up=True) as streams:
        await streams.add(Selecting(scene.name, "y"))
        sick = await streams.add(Selecting(scene.name, "x"))
        scene.publish("x", "y", "z")
        await streams.quiesce()
        assert scene.broker.committed() == 3
        scene.fails.clear()
        await streams.restart(sick)
        await streams.quiesce()
        assert payloads_of(sick) == ["x"]
        scene.publish("x")
        await streams.quiesce()
        assert payloads_of(sick) == ["x", "x"]


@pytest.mark.rule("18: a watcher that is too slow for a waiting sibling falls behind")
async def test_one_that_is_too_slow_falls_behind_and_its_sibling_does_not_wait(
    scene: Scene,
) -> None:
    async with StreamHarness(
        catch_up=True, subscriber_queue_size=4, overflow_grace=3600.0, persistence="auto"
    ) as streams:
        well = await streams.add(scene.watcher("well"))
        slow = await streams.add(Stuck(scene.name, "slow"))
        scene.publish(*range(50))
        await streams.quiesce()
        assert payloads_of(well) == list(range(50))
        assert scene.broker.committed() == 50
        assert slow.behind == {0: [scene.broker.identity, 0]}


class Stuck(Watching):
    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[Any]
    ) -> AsyncIterator[TriggerEvent]:
        async for event in shared_stream:
            await anyio.sleep_forever()
            yield TriggerEvent(event)


@pytest.mark.rule("18: watchers that all fail leave their backlog with the broker")
async def test_if_all_fail_a_message_the_broker_keeps_it(scene: Scene) -> None:
    scene.fails["one"] = scene.fails["other"] = lambda event: event == 1
    async with StreamHarness(catch_up=True) as streams:
        one = await streams.add(scene.watcher("one"))
        other = await streams.add(scene.watcher("other"))
        scene.publish(0, 1, 2)
        await streams.quiesce()
        assert scene.broker.committed() == 1
        assert one.behind == other.behind == {}
        scene.fails.clear()
        await streams.restart(one)
        await streams.restart(other)
        await streams.quiesce()
        assert payloads_of(one) == payloads_of(other) == [0, 1, 2]


@pytest.mark.rule(
    "18: a watcher's position moves past a message when the derived events are durable"
)
async def test_events_of_a_watcher_that_catches_up_are_confirmed_before_its_position_moves(
    scene: Scene,
) -> None:
    sink = Late(1)
    scene.fails["sick"] = always
    at_first = [scene.broker.identity, 0]
    async with hosting(scene, sink):
        scene.publish(0, 1)
        await sink.until(lambda: scene.broker.committed() == 2)
        scene.fails.clear()
        # The event of the first message is not durable yet.
        await sink.until(lambda: sink.derived(1) == [1])
        assert sink.positions[1, "0"] == at_first
        scene.publish(2)
        await sink.until(lambda: scene.broker.committed() == 3 and sink.derived(1) == [1, 2])
        assert sink.positions[1, "0"] == at_first
        sink.answer()
        await sink.until(lambda: sink.positions[1, "0"] is None)
    assert sorted(sink.derived(1)) == [0, 1, 2]


@pytest.mark.rule("a deleted watcher's rows stay for ever, or block a slot")
async def test_a_watcher_that_is_removed_is_waited_for_no_more(scene: Scene) -> None:
    scene.fails["sick"] = always
    async with StreamHarness(catch_up=True) as streams:
        well = await streams.add(scene.watcher("well"))
        sick = await streams.add(scene.watcher("sick"))
        scene.publish(0)
        await streams.quiesce()
        await streams.remove(sick)
        scene.publish(1)
        await streams.quiesce()
        assert sick.behind == {}
        assert payloads_of(well) == [0, 1]
        assert scene.broker.committed() == 2


@pytest.mark.rule("18: a watcher that is behind catches up even if `on_failure` is `redeliver`")
async def test_a_watcher_that_is_behind_under_redeliver_catches_up_and_nobody_else_falls_behind(
    scene: Scene,
) -> None:
    scene.publish("a", "b", "c")
    watchers = {1: Watching(scene.name, "behind"), 2: Watching(scene.name, "well")}
    sink = Sink()
    fence = Fence("stream", "me", 1)
    scene.broker.seek(2)
    row = LanePosition(1, "0", [scene.broker.identity, 0], datetime.now(UTC))
    specs = [
        TriggerSpec(
            name=watcher.name,
            make=lambda watcher=watcher: watcher,
            kwargs=watcher.serialize()[1],
            source=EventSource((WatcherRef(number, 0),), fence),
            positions=(row,) if number == 1 else (),
        )
        for number, watcher in watchers.items()
    ]
    scene.fails["well"] = lambda event: event == "d"
    context = RuntimeContext(
        sink, sink, falls_behind=False, restart_first=0.01, restart_longest=0.01
    )
    async with Manager(context) as manager:
        manager.add(specs)
        await sink.until(lambda: sink.derived(1) == ["a", "b", "c"] and sink.derived(2) == ["c"])
        scene.publish("d")
        # Wait for several deliveries, because the first failure decides nothing yet.
        await sink.until(lambda: scene.opened.count(("well", "d")) > 2)
        assert sink.derived(1) == ["a", "b", "c", "d"]
        assert scene.broker.committed() == 3
        assert set(sink.positions) <= {(1, "0")}
        scene.fails.clear()
        await sink.until(lambda: sink.derived(2) == ["c", "d"])


@pytest.mark.rule(
    "18: a watcher's position moves past a message when the derived events are durable"
)
async def test_a_message_refused_while_none_is_open_is_read_again(scene: Scene) -> None:
    """The store answers late: the reader has passed the message when the store refuses the message's event."""

    class Late(Sink):
        """Answers for events in the next turn of the event loop."""

        def submit_nowait(self, *given: Any) -> None:
            loop = asyncio.get_running_loop()
            if isinstance(given[0], PositionChange):
                super().submit_nowait(*given)
            else:
                loop.call_soon(super().submit_nowait, *given)

    sink = Late()
    # Refuse enough messages to refuse the last message of a batch of the reader.
    refused = set(range(5, 40))

    def refuses(_: int, payload: Any) -> bool:
        return payload in refused and not refused.discard(payload)

    sink.refuses = refuses
    scene.publish(*range(60))
    scene.broker.seek(60)
    watcher = scene.watcher("sick")
    spec = TriggerSpec(
        name="sick",
        make=lambda: watcher,
        kwargs=watcher.serialize()[1],
        source=EventSource((WatcherRef(1, 0),), Fence("stream", "me", 1)),
        positions=(LanePosition(1, "0", [scene.broker.identity, 0], datetime.now(UTC)),),
    )
    context = RuntimeContext(sink, sink, restart_first=0.001, restart_longest=0.001)
    async with Manager(context) as manager:
        manager.add([spec])
        await sink.until(lambda: sink.positions.get((1, "0")) == [scene.broker.identity, 60])
        assert sorted(sink.derived(1)) == list(range(60))


@pytest.mark.rule("18: the broker advances only after the watcher's position is stored")
async def test_a_group_that_restarts_waits_for_the_position_that_is_being_written(
    scene: Scene,
) -> None:
    """The watcher falls behind at a message that its sibling has acked."""
    sink = Sink()
    fence = Fence("stream", "me", 1)
    specs = []
    for number, name in enumerate(("sick", "well"), 1):
        watcher = scene.watcher(name)
        source = EventSource((WatcherRef(number, 0),), fence)
        kwargs = watcher.serialize()[1]
        specs.append(TriggerSpec(name, partial(Watching, **kwargs), kwargs, source))
    scene.fails["sick"] = lambda event: event == "b"
    sink.delayed_positions = []
    context = RuntimeContext(sink, sink, restart_first=0.01, restart_longest=0.01)
    async with Manager(context) as manager:
        sick, _ = manager.add(specs)
        scene.publish("a", "b", lane=0)
        await sink.until(lambda: bool(sink.delayed_positions))
        with anyio.fail_after(10):
            # The filter is back, and receives the messages of other lanes.
            while sick.subscriber is None or not sick.subscriber.is_present:
                await anyio.lowlevel.checkpoint()
        scene.is_breaking = True
        scene.publish("other", lane=1)
        await sink.until(lambda: "other" in sink.derived(2))
        (stream,) = manager.streams.values()
        with anyio.fail_after(10):
            group = stream.group
            while stream.group is group or stream.group is None:
                await anyio.lowlevel.checkpoint()
        scene.is_breaking = False
        scene.fails.clear()
        scene.publish("more", lane=1)
        with anyio.fail_after(10):
            while scene.broker.committed(1) < 2:
                await anyio.lowlevel.checkpoint()
        assert scene.broker.committed(0) == 1
        sink.release()
        await sink.until(lambda: sink.derived(1)[:1] == ["a"] and "b" in sink.derived(1))
        with anyio.fail_after(10):
            while scene.broker.committed(0) < 2:
                await anyio.lowlevel.checkpoint()


class Unmakeable(Watching):
    """A trigger whose constructor raises while its scene says so."""

    def __init__(self, scene: str, name: str) -> None:
        super().__init__(scene, name)
        if name in Scene.by_name[scene].fails:
            raise RuntimeError("cannot be made")


@pytest.mark.rule("18: commands and the page show how far a watcher is behind, and since when")
async def test_how_far_one_is_behind_that_cannot_be_made_is_stored_while_more_comes(
    scene: Scene,
) -> None:
    log_ends: list[int | None] = []

    class Noting(Sink):
        def submit_nowait(self, *given: Any) -> None:
            if isinstance(given[0], PositionChange):
                log_ends.append(given[0].log_end)
            super().submit_nowait(*given)

    sink = Noting()
    away, well = scene.specs("away", "well")
    context = RuntimeContext(sink, sink, restart_first=0.01, restart_longest=0.01)
    async with Manager(context) as manager:
        manager.add([replace(away, make=partial(Unmakeable, **away.kwargs)), well])
        scene.publish("first", "second")
        await sink.until(lambda: len(sink.derived(1)) == len(sink.derived(2)) == 2)
        scene.fails["away"] = always
        scene.publish(*range(10))
        await sink.until(lambda: len(sink.derived(2)) == 12 and (1, "0") in sink.positions)
        scene.publish(*range(10, 50))
        await sink.until(lambda: len(sink.derived(2)) == 52)
        with anyio.fail_after(10):
            while log_ends[-1] != 52:
                await checkpoint()
    assert sink.derived(1) == ["first", "second"]


class Late(Sink):
    """Delays the answer for the first event of one watcher until a test releases it."""

    def __init__(self, watcher_id: int) -> None:
        super().__init__()
        self.late: list[tuple[Any, ...]] = []
        self._watcher_id = watcher_id

    def submit_nowait(self, *given: Any) -> None:
        is_other = isinstance(given[0], PositionChange) or self.late
        if is_other or given[2].watchers[0].watcher_id != self._watcher_id:
            super().submit_nowait(*given)
        else:
            self.changed.notify_all()
            self.late.append(given)

    def answer(self) -> None:
        for given in self.late:
            super().submit_nowait(*given)


@pytest.mark.rule(
    "18: a watcher gets each message of its backlog once, in order, before any newer message"
)
async def test_one_that_is_back_reads_nothing_newer_before_it_is_decided_what_it_has_missed(
    scene: Scene,
) -> None:
    """The store may still refuse the old filter's event of "a". Until it answers, the new filter gets no message.

    The simulation's seed 71415 found this case.
    """
    sink = Late(1)
    async with hosting(scene, sink) as (manager, sick, _):
        scene.publish("a")
        await sink.until(lambda: sink.derived(2) == ["a"] and bool(sink.late))
        manager.remove(sick, on_purpose=False)
        (back,) = manager.add(scene.specs("sick"))
        gate = scene.gates["well", "b"] = anyio.Event()
        scene.publish("b", "c")
        await sink.until(lambda: back.subscriber is not None and back.subscriber.done == 3)
        sink.answer()
        await sink.until(lambda: scene.broker.committed() == 1)
        scene.publish("d")
        await sink.until(lambda: back.subscriber.done == 4)
        gate.set()
        await sink.until(lambda: scene.broker.committed() == 4 and len(sink.derived(1)) == 4)
        assert [event for name, event in scene.opened if name == "sick"] == ["a", "b", "c", "d"]
        assert sink.derived(1) == sink.derived(2) == ["a", "b", "c", "d"]


@pytest.mark.rule("18: a position's row is deleted once the broker has advanced to the position")
async def test_its_row_goes_also_if_the_group_ends_when_all_that_it_has_missed_is_durable(
    scene: Scene,
) -> None:
    """The lane gets no later message, so no later advance will delete the row."""
    sink = Late(1)
    scene.fails["sick"] = lambda event: event == "a"
    context = RuntimeContext(sink, sink, restart_first=0.2, restart_longest=0.2)
    async with Manager(context) as manager:
        manager.add(scene.specs("sick", "well"))
        scene.publish("a", lane=0)
        await sink.until(lambda: scene.broker.committed(0) == 1)
        scene.fails.clear()
        await sink.until(lambda: len(sink.late) == 1)
        (stream,) = manager.streams.values()
        with anyio.fail_after(10):
            while not all(backlog.is_caught_up for backlog in stream.behind.backlogs.all()):
                await anyio.lowlevel.checkpoint()
        scene.is_breaking = True
        scene.publish("other", lane=1)
        with anyio.fail_after(10):
            while stream.group is not None:
                await anyio.lowlevel.checkpoint()
        scene.is_breaking = False
        sink.answer()
        assert sink.positions[1, "0"] is not None
        await sink.until(lambda: sink.positions[1, "0"] is None)


@pytest.mark.rule("18: a position's row is deleted once the broker has advanced to the position")
async def test_its_row_goes_also_if_the_next_group_has_advanced_the_broker_before_all_is_durable(
    scene: Scene,
) -> None:
    """An advance deletes the row, but the lane's last advance comes too early here (the simulation's seed 50050)."""
    sink = Late(1)
    scene.fails["sick"] = lambda event: event == "a"
    async with hosting(scene, sink) as (manager, _, _):
        scene.publish("a", lane=0)
        await sink.until(lambda: scene.broker.committed(0) == 1)
        scene.fails.clear()
        (stream,) = manager.streams.values()
        await sink.until(
            lambda: (
                bool(sink.late)
                and all(backlog.is_caught_up for backlog in stream.behind.backlogs.all())
            )
        )
        before, scene.is_breaking = stream.group, True
        scene.publish("other", lane=1)
        await sink.until(lambda: stream.group not in (None, before))
        scene.is_breaking = False
        scene.publish("b", lane=0)
        await sink.until(lambda: scene.broker.committed(0) == 2)
        assert sink.positions[1, "0"] == [scene.broker.identity, 0]
        sink.answer()
        await sink.until(lambda: sink.positions[1, "0"] is None)


@pytest.mark.rule("18: after catch-up a watcher goes live without a gap")
async def test_one_that_falls_behind_again_misses_nothing_that_was_broadcast_while_nobody_was(
    scene: Scene,
) -> None:
    """The lane tail keeps messages only while a watcher is behind. So the lane tail of one backlog is useless for the
    next backlog.
    """
    async with StreamHarness(catch_up=True, persistence="auto") as streams:
        well = await streams.add(scene.watcher("well"))
        sick = await streams.add(scene.watcher("sick"))
        for start in (0, 100, 200):
            scene.fails["sick"] = lambda event, first=start + 50: event == first
            scene.publish(*range(start, start + 50))
            await streams.quiesce()
            assert sick.behind == {}
            scene.publish(*range(start + 50, start + 60))
            await streams.quiesce()
            assert sick.behind == {0: [scene.broker.identity, start + 50]}
            scene.publish(*range(start + 60, start + 100))
            await streams.quiesce()
            scene.fails.clear()
            await streams.restart(sick)
            await streams.quiesce()
            assert payloads_of(sick) == payloads_of(well) == list(range(start + 100))


@pytest.mark.rule("18: after catch-up a watcher goes live without a gap")
async def test_an_old_row_of_a_watcher_that_has_caught_up_does_not_rewind_it(
    scene: Scene,
) -> None:
    """The new trigger has a position that was read from the store before the watcher caught up.

    The position's row is deleted. If the watcher went back to the position, a crash would lose messages (seed 13687).
    """
    sink = Sink()
    scene.fails["sick"] = lambda event: True
    async with hosting(scene, sink) as (manager, sick, _):
        scene.publish("a", "b")
        await sink.until(lambda: sink.positions.get((1, "0")) == [scene.broker.identity, 0])
        read = (LanePosition(1, "0", [scene.broker.identity, 0], datetime.now(UTC)),)
        scene.fails.clear()
        await sink.until(lambda: sink.derived(1) == ["a", "b"])
        scene.publish("c")
        await sink.until(lambda: scene.broker.committed() == 3 and sink.positions[1, "0"] is None)
        manager.remove(sick, on_purpose=False)
        sink.delayed_positions, scene.gates["sick", "a"] = [], anyio.Event()
        manager.add(scene.specs("sick", positions=read))
        scene.publish("d")
        await sink.until(lambda: scene.broker.committed() == 4)
        assert sink.derived(1) == ["a", "b", "c", "d"]


async def test_one_that_has_moved_to_another_stream_is_behind_in_the_one_before_no_more(
    any_scene: Scene,
) -> None:
    sink = Sink()
    any_scene.fails["sick"] = always
    async with hosting(any_scene, sink) as (manager, sick, _):
        any_scene.publish("a", "b")
        await sink.until(lambda: any_scene.broker.committed() == 2)
        (stream,) = manager.streams.values()
        assert stream.behind.backlogs
        manager.remove(sick, on_purpose=False)
        manager.add([])
        assert not stream.behind.backlogs
        any_scene.publish("c")
        await sink.until(lambda: any_scene.broker.committed() == 3)
        # The fate of its row is tested with the store.
        any_scene.fails.clear()
        manager.add(any_scene.specs("sick"))
        any_scene.publish("d")
        await sink.until(lambda: sink.derived(1) == ["d"])


async def test_lanes_whose_places_are_stored_in_one_commit_are_all_read(scene: Scene) -> None:
    """An earlier version did not read the first lane while the watcher failed in the second (seed 1053)."""
    sink = Sink()
    sink.delayed_positions = []
    scene.fails["sick"] = lambda event: event == "b" or not sink.positions
    async with Manager(RuntimeContext(sink, sink)) as manager:
        manager.add(scene.specs("sick", "well"))
        scene.publish("a", lane="first")
        scene.publish("b", lane="second")
        await sink.until(lambda: len(sink.delayed_positions or ()) >= 2)
        sink.release()
        await sink.until(lambda: sink.derived(1) == ["a"])


def behind_by(scene: Scene, count: int, name: str) -> list[TriggerSpec]:
    """Return the trigger of a watcher that is behind by `count` messages, which the broker has advanced past."""
    scene.publish(*range(count))
    scene.broker.seek(count)
    row = LanePosition(1, "0", [scene.broker.identity, 0], datetime.now(UTC))
    return scene.specs(name, positions=(row,))


class Ahead(SystemClock):
    """A clock that runs normally, and jumps when a test moves it."""

    seconds = 0.0

    def monotonic(self) -> float:  # type: ignore[override]
        return time.monotonic() + self.seconds


@pytest.mark.rule("18: a position moves every few seconds if no events derive from the messages")
async def test_the_position_of_a_slow_watcher_that_derives_nothing_is_stored_every_few_seconds(
    scene: Scene,
) -> None:
    clock, sink = Ahead(), Sink()

    def take_long(_: Any) -> bool:
        clock.seconds += 1.5
        return True

    scene.ignores = take_long
    scene.gates["slow", 9] = anyio.Event()
    specs = behind_by(scene, 12, "slow")
    async with Manager(RuntimeContext(sink, sink, clock=clock)) as manager:
        manager.add(specs)
        await sink.until(lambda: ("slow", 9) in scene.opened)
        position = sink.positions[1, "0"]
        assert position is not None
        assert position[1] >= 7


@pytest.mark.rule("18: catch-up gives way to live watchers")
async def test_the_slower_its_filter_the_more_often_one_that_catches_up_gives_way(
    scene: Scene,
) -> None:
    # The filter computes on the event loop: while it works on a message, no other task runs.
    scene.ignores = lambda _: time.sleep(0.001) is None
    sink = Sink()
    specs = behind_by(scene, 200, "slow")
    async with Manager(RuntimeContext(sink, sink)) as manager:
        manager.add(specs)
        # At first, the runtime has to guess how slow the filter is.
        await sink.until(lambda: len(scene.opened) >= 100)
        most = 0
        with anyio.fail_after(10):
            while (before := len(scene.opened)) < 200:
                await checkpoint()
                most = max(most, len(scene.opened) - before)
        assert most == 1


async def test_an_error_is_shown_until_the_next_message_passes(scene: Scene) -> None:
    sink = Sink()
    sink.refuses = lambda _, payload: payload == 3
    scene.gates["sick", 5] = anyio.Event()
    async with Manager(context(sink)) as manager:
        (one,) = manager.add(behind_by(scene, 10, "sick"))
        await sink.until(lambda: ("sick", 5) in scene.opened)
        assert one.catching_up == {1: None}
        scene.gates["sick", 5].set()
        await sink.until(lambda: len(sink.derived(1)) == 9)


async def test_one_that_fails_now_and_then_is_not_held_up_as_one_that_takes_nothing(
    scene: Scene,
) -> None:
    """Each of a hundred lanes has a message that passes, and then one that fails once. So a message passes between
    two failures."""
    failed = set[str]()

    def fails_once(event: str) -> bool:
        if event in failed or event.startswith("good"):
            return False
        failed.add(event)
        return True

    scene.fails["sick"] = fails_once
    sink = Sink()
    for lane in range(100):
        scene.publish(f"good {lane}", f"bad {lane}", lane=lane)
        scene.broker.seek(2, lane=lane)
    rows = tuple(
        LanePosition(1, str(lane), [scene.broker.identity, 0], datetime.now(UTC))
        for lane in range(100)
    )
    async with Manager(Patient(sink, sink)) as manager:
        manager.add(scene.specs("sick", positions=rows))
        await sink.until(lambda: len(sink.derived(1)) == 200)


class Patient(RuntimeContext):
    """A lane is tried again after 10 ms, but a watcher only after 10 hours."""

    def retry_backoff(self) -> Backoff:
        return Backoff(first=0.01, longest=0.01, random=self.random)

    def restart_backoff(self) -> Backoff:
        return Backoff(first=36_000, longest=36_000, random=self.random)


@pytest.mark.rule("18: watchers that all fail leave their backlog with the broker")
async def test_a_watcher_that_skipped_a_message_and_then_failed_has_not_acked_it(
    scene: Scene,
) -> None:
    sink = Sink()
    # Lane 0 waits at "a", while its watcher continues live in other lanes.
    sink.is_full_of_parked = True
    sink.refuses = lambda watcher_id, payload: (watcher_id, payload) == (1, "a")
    scene.fails["sick"] = lambda event: event == "d"
    scene.fails["well"] = lambda event: event == "b"
    async with hosting(scene, sink):
        scene.publish("a")
        await sink.until(lambda: (1, "0") in sink.positions and sink.derived(2) == ["a"])
        gate = scene.gates["well", "b"] = anyio.Event()
        scene.publish("b")
        scene.publish("c", lane=1)
        await sink.until(lambda: sink.derived(1) == ["c"])
        scene.publish("d", lane=1)
        await sink.until(lambda: ("sick", "d") in scene.opened)
        assert ("sick", "b") not in scene.opened, "it is behind in that lane"
        gate.set()
        await sink.until(lambda: scene.opened.count(("well", "b")) > 1)
        assert (2, "0") not in sink.positions
        scene.fails.clear()
        sink.refuses = lambda watcher_id, payload: False
        await sink.until(lambda: sorted(sink.derived(1)) == sorted(sink.derived(2)) == list("abcd"))


class Reassigned(InMemoryProducer):
    """A producer whose lane goes to another consumer and comes back. So it yields message 2, and then 0, 1 and 2."""

    async def open_stream(self) -> AsyncIterator[tuple[Any, Any]]:
        for offset in (2, 0, 1, 2):
            message = InMemoryMessage(offset, 0, offset, 0)
            yield offset, message
        await anyio.sleep_forever()

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """Ignore the advance."""


class WatchingReassigned(Watching):
    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        return Reassigned(Scene.by_name[kwargs["scene"]].broker)


class ReassignedScene(Scene):
    def watcher(self, name: str) -> Watching:
        return WatchingReassigned(scene=self.name, name=name)


@pytest.mark.rule(
    "18: a watcher gets each message of its backlog once, in order, before any newer message"
)
async def test_a_watcher_that_falls_behind_also_receives_later_redeliveries() -> None:
    """After the watcher's first failure, messages 0, 1 and 2 are redelivered. It must get all three (seed 904158)."""
    scene, sink = ReassignedScene(), Sink()
    scene.publish(*range(3))
    scene.fails["sick"] = always
    scene.gates["well", 2] = gate = anyio.Event()
    async with hosting(scene, sink):
        await sink.until(lambda: ("sick", 2) in scene.opened)
        gate.set()
        await sink.until(lambda: bool(sink.positions) and {*sink.derived(2)} == {0, 1, 2})
        scene.fails.clear()
        await sink.until(lambda: sink.derived(1) == [0, 1, 2])


async def test_events_that_become_durable_after_their_stream_was_closed_move_no_position(
    scene: Scene,
) -> None:
    """The stream may start again by then, under the same lease (the simulation's seed 906232)."""
    sink = Late(1)
    scene.fails["sick"] = always
    async with hosting(scene, sink) as (manager, sick, _):
        scene.publish("a")
        await sink.until(lambda: bool(sink.positions))
        scene.fails.clear()
        await sink.until(lambda: bool(sink.late))
        manager.abandon(sick)
        sink.positions.clear()
        sink.answer()
        assert sink.derived(1) == ["a"]
        assert not sink.positions
