"""The live state of streams: how full they are, how far behind, and why they wait."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from types import FrameType
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from tests.unit.streams.scene import Scene, Sink, context
from triggerer.domain.live_state import StreamLive, stream_from_json
from triggerer.streams import Manager, Member, RuntimeSettings
from triggerer.streams.supervision.live_state import read_streams
from triggerer.testing.clock import VirtualClock


@asynccontextmanager
async def hosted(
    scene: Scene, sink: Sink, *names: str, **others: Any
) -> AsyncIterator[tuple[Manager, list[Member]]]:
    """Host watchers of these names on one stream with the id `digest`."""
    specs = [replace(spec, stream_id="digest") for spec in scene.specs(*names)]
    async with Manager(context(sink, **others)) as manager:
        yield manager, manager.add(specs)


def live(manager: Manager, **options: Any) -> StreamLive:
    (found,) = read_streams(manager, **options)
    # A report is JSON, and reads back as it was.
    assert stream_from_json(json.loads(json.dumps(asdict(found)))) == found
    return found


async def test_messages_are_consumed_outstanding_and_then_advanced(scene: Scene) -> None:
    sink = Sink()
    scene.gates["one", "b"] = anyio.Event()
    async with hosted(scene, sink, "one") as (manager, _):
        scene.publish("a")
        scene.publish("b", "c", lane="other")
        await sink.until(lambda: ("one", "b") in scene.opened)
        await sink.until(lambda: live(manager).advanced == 1)
        seen = live(manager)
        assert (seen.stream_id, seen.epoch, seen.triggers) == ("digest", 1, 1)
        assert (seen.consumed, seen.advanced, seen.outstanding) == (3, 1, 2)
        assert seen.lag_seconds is not None
        assert seen.lag_seconds >= 0
        (lane,) = seen.lanes
        assert (lane.lane, lane.outstanding, seen.lane_count) == ('"other"', 2, 1)
        scene.gates["one", "b"].set()
        await sink.until(lambda: live(manager).advanced == 3)
        seen = live(manager)
        assert (seen.outstanding, seen.lag_seconds, seen.lane_count) == (0, 0.0, 0)
        assert not seen.lanes


async def test_rejected_and_failed_messages_are_counted_once_and_restarts_keep_the_counts(
    scene: Scene,
) -> None:
    sink = Sink()
    scene.has_dead_letters = True
    scene.rejects = lambda event: event == "bad"
    async with hosted(scene, sink, "one") as (manager, _):
        scene.publish("a", "bad", "b")
        await sink.until(lambda: live(manager).advanced == 3)
        assert live(manager).rejected == 1
        scene.is_breaking = True
        scene.publish("c")
        await sink.until(lambda: live(manager).restarts == 1)
        scene.is_breaking = False
        await sink.until(lambda: sink.derived(1) == ["a", "b", "c"])
        await sink.until(lambda: live(manager).advanced == 4)
        seen = live(manager)
        assert (seen.rejected, seen.outstanding) == (1, 0)
        # The message of the broken advance was consumed twice.
        assert seen.consumed == 5


async def test_no_count_falls_while_a_group_ends(scene: Scene) -> None:
    """Prometheus takes a fall for a restart of the process, and adds the whole number again."""
    sink = Sink()
    async with hosted(scene, sink, "one") as (manager, _):
        scene.publish("a", "b", "c")
        await sink.until(lambda: live(manager).advanced == 3)
        seen: list[tuple[int, int]] = []

        async def watch() -> None:
            while True:
                found = live(manager)
                seen.append((found.consumed, found.advanced))
                await checkpoint()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            scene.is_breaking = True
            scene.publish("d")
            await sink.until(lambda: live(manager).restarts == 1)
            tasks.cancel_scope.cancel()
        assert len(seen) > 5
        for counts in zip(*seen, strict=True):
            assert list(counts) == sorted(counts)


async def test_a_stream_that_is_full_says_so_and_shows_its_worst_lanes_only(scene: Scene) -> None:
    sink = Sink()
    for number in range(6):
        scene.gates["one", number] = anyio.Event()
    settings = RuntimeSettings(max_outstanding=6, max_outstanding_per_lane=3)
    async with hosted(scene, sink, "one", settings=settings) as (manager, _):
        for number in range(6):
            scene.publish(number, lane=max(number - 2, 0))
        await sink.until(lambda: live(manager).outstanding == 6)
        seen = live(manager, most_lanes=2)
        assert {"stream_full", "lane_full"} <= {pause.reason for pause in seen.paused}
        assert (seen.lane_count, len(seen.lanes)) == (4, 2)
        assert seen.lanes[0].is_full
        assert seen.lanes[0].lane == "0"
        for gate in scene.gates.values():
            gate.set()
        await sink.until(lambda: live(manager).advanced == 6)
        assert not live(manager).paused


async def test_a_watcher_that_fell_behind_and_a_standing_lane_are_shown(scene: Scene) -> None:
    sink = Sink()
    scene.fails["sick"] = lambda event: event == "poison"
    async with hosted(scene, sink, "sick", "well") as (manager, members):
        scene.publish("poison")
        await sink.until(lambda: bool(members[0].catching_up))
        assert live(manager).behind == 1
        group = manager.streams_by_id["digest"].group
        assert group is not None
        group.state.standing["x", 1] = "there is no dead-letter topic"
        seen = live(manager)
        assert seen.lanes[0].standing == "there is no dead-letter topic"
        assert ("standing", '["x",1]: there is no dead-letter topic') in [
            (pause.reason, pause.detail) for pause in seen.paused
        ]


async def test_each_lane_has_a_lag_also_if_none_of_its_messages_was_read(scene: Scene) -> None:
    sink, clock = Sink(), VirtualClock()
    scene.gates["one", "a"] = anyio.Event()
    async with hosted(scene, sink, "one", clock=clock) as (manager, _):
        scene.publish("a", lane="busy")
        await sink.until(lambda: live(manager).outstanding == 1)
        assert live(manager).lag_messages is None
        assert live(manager).lanes[0].lag_messages is None
        scene.waiting = {"busy": 2, "unread": 40, "empty": 0}
        # The lane whose message has waited longer comes first, although the other lane has more messages.
        clock.move_to(clock.monotonic() + 1)
        seen = live(manager)
        assert seen.lag_messages == 43
        assert [(lane.lane, lane.lag_messages) for lane in seen.lanes] == [
            ('"busy"', 3),
            ('"unread"', 40),
        ]
        assert seen.lane_count == 2
        scene.gates["one", "a"].set()


@dataclass(frozen=True)
class Message:
    """A message that has a time, or a property that fails."""

    at: Any

    @property
    def published_at(self) -> Any:
        if isinstance(self.at, Exception):
            raise self.at
        return self.at


class Asking(Sink):
    """A sink that asks when the message of an event was published."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[datetime | None] = []

    def submit_nowait(self, *given: Any) -> None:
        if hasattr(given[0], "published_at"):
            self.times.append(given[0].published_at)
        super().submit_nowait(*given)


async def test_a_derived_event_tells_when_its_message_was_published(scene: Scene) -> None:
    sink = Asking()
    now = datetime.now(UTC)
    odd = [now.replace(tzinfo=None), now + timedelta(days=2), "noon", ValueError("no time")]
    async with hosted(scene, sink, "one", "two"):
        scene.publish(Message(now), *map(Message, odd), Message(None))
        await sink.until(lambda: len(sink.times) == 12)
    assert sink.times.count(now) == 2
    assert set(sink.times) == {now, None}


@contextmanager
def changing(*containers: dict[Any, Any], every: int) -> Iterator[None]:
    """While the code in this context runs, remove the last item of the containers, add it again, and so on.

    The event loop's thread may change the containers like this while another thread reads them.

    Args:
        every: The containers change before every n-th line of the code.
    """
    last = [next(reversed(container.items())) for container in containers]
    lines = count(1)

    def change(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line" and next(lines) % every == 0:
            for container, (key, value) in zip(containers, last, strict=True):
                if key in container:
                    del container[key]
                else:
                    container[key] = value
        return change

    before = sys.gettrace()
    sys.settrace(change)
    try:
        yield
    finally:
        sys.settrace(before)
        for container, (key, value) in zip(containers, last, strict=True):
            container[key] = value


@pytest.mark.parametrize("every", [1, 2, 3])
async def test_the_event_loop_may_change_everything_during_a_read(scene: Scene, every: int) -> None:
    sink = Sink()
    scene.gates["one", "a"] = anyio.Event()
    async with hosted(scene, sink, "one", "two") as (manager, _):
        scene.publish("a", lane="first")
        scene.publish("b", lane="second")
        await sink.until(lambda: ("one", "a") in scene.opened)
        streams = manager.streams_by_id
        stream = streams["digest"]
        group = stream.group
        assert group is not None
        state = group.state
        state.standing["first"] = state.standing["second"] = "refused"
        for lane in state.lanes:
            state.lanes.full[lane.key] = lane
        state.is_poll_waiting = True
        scene.waiting = {"first": 1, "second": 2}
        streams["again"] = stream
        with changing(
            streams,
            stream.members,
            group.subscribers.present,
            state.standing,
            state.lanes.full,
            scene.waiting,
            every=every,
        ):
            found = read_streams(manager)
        assert {one.stream for one in found} == {stream.name}
        del streams["again"]
        state.lanes.full.clear()
        scene.gates["one", "a"].set()
