"""A log loses its end while a watcher is behind in it, and new messages get the lost offsets again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable
from datetime import UTC, datetime
from typing import Any, NamedTuple

import anyio
import pytest

from tests.unit.streams.scene import Breaking, Scene, Sink, Watching, hosting
from triggerer.domain.watchers.lane_positions import LanePosition
from triggerer.streams import Manager
from triggerer.testing import InMemoryMessage

SICK, WELL = 1, 2
READ_BEFORE, READ_SINCE = -2, -1


class Used(NamedTuple):
    since: int
    below: int


class Cut(str):
    """An incarnation that also tells which cuts were known, as in Kafka's positions."""

    __slots__ = ("used",)
    used: tuple[Used, ...]


class Cutting(Scene):
    """A scene whose log can be cut once. The poll notices the cut at once, and goes back to the committed offset."""

    since: int | None = None

    def __init__(self) -> None:
        super().__init__()
        self.plain = self.broker.identity
        self.cut_one = Cut(self.plain)
        self.delivery_since = 0

    def watcher(self, name: str) -> Watching:
        return WatchingCut(scene=self.name, name=name)

    def cut(self, since: int, *values: str) -> None:
        log = self.broker.logs()[0]
        del log.values[since:], log.published_at[since:]
        log.committed = min(log.committed, since)
        self.since = since
        self.cut_one.used = (Used(since, 1000),)
        if log.holder is not None:
            reading = log.holder._readings[0]
            reading.position, reading.delivery = log.committed, reading.delivery + 1
            self.delivery_since = reading.delivery
        self.publish(*values)


class CutProducer(Breaking):
    scene: Cutting

    def _is_since(self, message: InMemoryMessage) -> bool:
        if message.delivery < 0:
            return message.delivery == READ_SINCE
        return self.scene.since is not None and message.delivery >= self.scene.delivery_since

    def get_position(self, broker_payload: InMemoryMessage) -> list[Any]:
        is_since = self._is_since(broker_payload)
        return [self.scene.cut_one if is_since else self.scene.plain, broker_payload.offset]

    def get_idempotency_key(self, broker_payload: InMemoryMessage) -> str:
        key, since = super().get_idempotency_key(broker_payload), self.scene.since
        is_new = self._is_since(broker_payload) and since is not None
        return f"{key}+1" if is_new and broker_payload.offset >= (since or 0) else key

    async def read_lane(
        self, lane: Hashable, position: list[Any]
    ) -> AsyncIterator[tuple[Any, InMemoryMessage]]:
        incarnation, offset = position
        since = self.scene.since
        if since is not None and not isinstance(incarnation, Cut):
            offset = min(offset, since)
        async for event, message in super().read_lane(lane, [incarnation, offset]):
            if self.scene.since != since:
                raise RuntimeError("the log was cut")
            mark = READ_BEFORE if since is None else READ_SINCE
            yield event, InMemoryMessage(event, lane, message.offset, mark)


class WatchingCut(Watching):
    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> CutProducer:
        scene = Scene.by_name[kwargs["scene"]]
        assert isinstance(scene, Cutting)
        return CutProducer(scene)


def old(first: int, end: int) -> list[str]:
    return [f"old {number}" for number in range(first, end)]


def new(first: int, end: int) -> list[str]:
    return [f"new {number}" for number in range(first, end)]


def new_in(in_flight: list[str]) -> list[str]:
    return [value for value in in_flight if value.startswith("new")]


async def behind_at(scene: Cutting, sink: Sink, stuck_at: str, end: int) -> None:
    """Have the sick watcher fall behind at `stuck_at`, and let its sibling read on to `end`."""
    scene.fails["sick"] = lambda event: event == stuck_at
    scene.publish(*old(0, 10))
    await sink.until(lambda: scene.broker.committed() == 10)
    # From here on, the lane tail keeps the messages in memory.
    scene.publish(*old(10, end))
    await sink.until(lambda: scene.broker.committed() == end)


async def live_with_its_row(scene: Cutting, sink: Sink, manager: Manager, end: int) -> anyio.Event:
    """Let the sick watcher catch up to `end`, while "well" holds "old 9" open until the returned event is set."""
    gate = scene.gates["well", "old 9"] = anyio.Event()
    scene.fails["sick"] = lambda event: event == "old 3"
    scene.publish(*old(0, 6))
    (stream,) = manager.streams.values()
    # The sick watcher's live filter is back before "well" waits at "old 9".
    await sink.until(lambda: scene.broker.committed() == 6 and len(stream.group.subscribers) == 2)
    scene.publish(*old(6, end))
    await sink.until(lambda: ("well", "old 9") in scene.opened)
    scene.fails.clear()
    await sink.until(lambda: f"old {end - 1}" in sink.derived(SICK) and is_caught_up(manager))
    return gate


def is_caught_up(manager: Manager) -> bool:
    """Whether the sick watcher has caught up, and the row of its position is still there."""
    (stream,) = manager.streams.values()
    backlog = stream.behind.backlogs.find(0, SICK)
    return backlog is not None and backlog.is_caught_up


@pytest.mark.rule("18: a log whose end was lost is read on from the place where it was cut")
@pytest.mark.parametrize("since", [5, 10, 30, 49])
async def test_a_watcher_that_is_behind_reads_the_new_messages_and_not_the_lost_ones_in_memory(
    since: int,
) -> None:
    scene, sink = Cutting(), Sink()
    async with hosting(scene, sink):
        await behind_at(scene, sink, "old 3", 50)
        scene.cut(since, *new(since, 80))
        await sink.until(lambda: "new 79" in sink.derived(WELL))
        scene.fails.clear()
        await sink.until(lambda: "new 79" in sink.derived(SICK))
        scene.publish("end")
        await sink.until(lambda: "end" in sink.derived(SICK))
        await sink.until(lambda: sink.positions[SICK, "0"] is None)
    # The watcher does not read the lost messages, and misses none of the new ones.
    assert sink.derived(SICK) == [*old(0, since), *new(since, 80), "end"]
    assert new_in(sink.derived(WELL)) == new(since, 80)


@pytest.mark.rule("18: a log whose end was lost is read on from the place where it was cut")
async def test_a_caught_up_watcher_with_a_row_is_rewound() -> None:
    """The new messages have lower offsets than the one at which the watcher went live.

    So in an earlier version, the new messages counted as read.
    """
    scene, sink = Cutting(), Sink()
    async with hosting(scene, sink) as (manager, *_):
        gate = await live_with_its_row(scene, sink, manager, 20)
        scene.cut(5, *new(5, 30))
        gate.set()
        await sink.until(lambda: "new 29" in sink.derived(WELL))
        scene.publish("end")
        await sink.until(lambda: "end" in sink.derived(SICK) and "end" in sink.derived(WELL))
        await sink.until(lambda: scene.broker.committed() == 31)
        await sink.until(lambda: sink.positions[SICK, "0"] is None)
    assert sink.derived(SICK) == [*old(0, 20), *new(5, 30), "end"]
    assert new_in(sink.derived(WELL)) == new(5, 30)


@pytest.mark.rule("18: a log whose end was lost is read on from the place where it was cut")
async def test_messages_from_memory_do_not_lead_a_watcher_past_the_cut() -> None:
    """The watcher has not reached the cut, and the lane tail still has messages that the log has lost."""
    scene, sink = Cutting(), Sink()
    async with hosting(scene, sink):
        await behind_at(scene, sink, "old 3", 50)
        gate = scene.gates["sick", "old 12"] = anyio.Event()
        scene.fails.clear()
        await sink.until(lambda: ("sick", "old 12") in scene.opened)
        scene.cut(15, *new(15, 60))
        await sink.until(lambda: "new 59" in sink.derived(WELL))
        gate.set()
        await sink.until(lambda: "new 59" in sink.derived(SICK))
    assert sink.derived(SICK) == [*old(0, 15), *new(15, 60)]


@pytest.mark.rule("18: a log whose end was lost is read on from the place where it was cut")
@pytest.mark.parametrize("stands_at", [3, 5, 8, 40])
async def test_a_log_that_was_cut_while_nobody_read_it(stands_at: int) -> None:
    """The log was cut before the stream started.

    The watcher's stored position does not say whether it was stored before or after the cut.
    """
    scene, sink = Cutting(), Sink()
    scene.publish(*old(0, 50))
    scene.broker.seek(4)
    scene.cut(5, *new(5, 60))
    row = LanePosition(SICK, "0", [scene.plain, stands_at], datetime.now(UTC))
    async with hosting(scene, sink, positions=(row,)):
        await sink.until(lambda: "new 59" in sink.derived(SICK))
        await sink.until(lambda: scene.broker.committed() == 60)
    assert new_in(sink.derived(SICK)) == new_in(sink.derived(WELL)) == new(5, 60)


@pytest.mark.rule("18: a log whose end was lost is read on from the place where it was cut")
async def test_a_watcher_that_fails_with_a_lost_message_misses_no_later_one() -> None:
    """The store refuses the event of "old 15", and then the log loses this message.

    The sibling waits at "old 9", so "old 15" is outstanding until the sick watcher has caught up.
    """
    scene, sink = Cutting(), Sink()
    sink.refuses = lambda watcher, payload: (watcher, payload) == (SICK, "old 15")
    async with hosting(scene, sink) as (manager, *_):
        gate = await live_with_its_row(scene, sink, manager, 12)
        scene.publish(*old(12, 20))
        await sink.until(lambda: "old 19" in sink.derived(SICK))
        scene.cut(5, *new(5, 9))
        await sink.until(lambda: "new 8" in sink.derived(SICK) and is_caught_up(manager))
        gate.set()
        await sink.until(lambda: scene.broker.committed() == 9)
        scene.publish(*new(9, 30))
        await sink.until(lambda: "new 29" in sink.derived(SICK))
        await sink.until(lambda: scene.broker.committed() == 30)
    assert new_in(sink.derived(SICK)) == new_in(sink.derived(WELL)) == new(5, 30)
