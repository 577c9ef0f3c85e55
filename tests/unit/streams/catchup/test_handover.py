"""How a watcher that catches up meets the messages that are broadcast (contract, rule 18)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from tests.unit.streams.scene import (
    MAX_DELIVERIES,
    Breaking,
    Scene,
    Sink,
    Watching,
    always,
    hosting,
)
from triggerer.abc import (
    AdvanceItem,
    ReportPassed,
    SharedStreamProducer,
    TriggerEvent,
    current_subscriber,
)
from triggerer.domain.events import Fence, WatcherRef
from triggerer.domain.watchers.lane_positions import LanePosition, ReplayRequest
from triggerer.errors import BrokerUnavailable
from triggerer.streams import Manager, RuntimeContext, RuntimeSettings
from triggerer.streams.catchup.backlogs.backlogs import Backlogs
from triggerer.streams.catchup.reading.lane_tail import LaneTail, LogMessage
from triggerer.streams.delivery.subscriber import Subscriber
from triggerer.testing.memory_broker import InMemoryMessage

SICK, WELL = 1, 2


class Held(Breaking):
    """A producer whose advance waits for the test if one of the messages has failed."""

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        assert isinstance(self.scene, Lively)
        if any(item.outcome.failed for item in batch):
            self.scene.is_failing.set()
            await self.scene.may_fail.wait()
        await super().advance(batch)

    def _next(self) -> InMemoryMessage | None:
        assert isinstance(self.scene, Lively)
        return None if self.scene.is_quiet else super()._next()


class Lively(Scene):
    """Watchers whose live filters raise at their start while their name is in `without_live`."""

    def __init__(self) -> None:
        super().__init__()
        self.without_live: set[str] = set()
        self.is_failing = anyio.Event()
        """Set while an advance with a failed message is under way."""
        self.may_fail = anyio.Event()
        self.is_quiet = False
        """Whether the broker delivers nothing."""
        self.sink = Sink()

    def watcher(self, name: str) -> Watching:
        return Living(scene=self.name, name=name)

    def row(self, watcher_id: int, place: int) -> LanePosition:
        """Return the position of a watcher that is at `place` in lane 0."""
        return LanePosition(watcher_id, "0", [self.broker.identity, place], datetime.now(UTC))


class Living(Watching):
    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        return Held(Scene.by_name[kwargs["scene"]])

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[Any]
    ) -> AsyncIterator[TriggerEvent]:
        scene = Scene.by_name[self.scene]
        assert isinstance(scene, Lively)
        if self.name in scene.without_live and isinstance(current_subscriber.get(), Subscriber):
            raise RuntimeError("cannot start")
        async for event in super().filter_shared_stream(shared_stream):
            yield event


class Marked(Breaking):
    """A producer whose lanes have a gap: three positions without a message after the first three messages."""

    def get_position(self, broker_payload: InMemoryMessage) -> list[Any]:
        identity, offset = super().get_position(broker_payload)
        return [identity, offset + 3 * (offset >= 3)]

    async def find_positions(self, start: datetime | None) -> Mapping[Hashable, list[Any]]:
        found = await super().find_positions(start)
        return {lane: [one, at + 3 * (at >= 3)] for lane, (one, at) in found.items()}

    async def read_lane_reporting(
        self, lane: Hashable, position: list[Any], report: ReportPassed
    ) -> AsyncIterator[tuple[Any, Any]]:
        identity, number = position
        if number >= 3:
            report([identity, 6])
        start = number if number < 3 else max(number - 3, 3)
        async for event, message in self.read_lane(lane, [identity, start]):
            yield event, message
            if message.offset == 2:
                report([identity, 6])


class WatchingMarked(Watching):
    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        return Marked(Scene.by_name[kwargs["scene"]])


class MarkedScene(Scene):
    def watcher(self, name: str) -> Watching:
        return WatchingMarked(scene=self.name, name=name)


@pytest.fixture
def scene() -> Lively:
    return Lively()


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(10):
        while not condition():
            await anyio.lowlevel.checkpoint()


@pytest.mark.timeout(30)
async def test_one_at_the_head_whose_live_filter_is_away_lets_others_run(scene: Lively) -> None:
    """An earlier version searched its memory for the next message without a pause, so no other task could run."""
    scene.without_live.add("sick")
    context = RuntimeContext(scene.sink, scene.sink, restart_first=1000.0, restart_longest=1000.0)
    async with Manager(context) as manager:
        manager.add(scene.specs("sick", "well"))
        for value in "abc":
            scene.publish(value)
            await until(lambda value=value: value in scene.sink.derived(SICK))  # type: ignore[misc]
        await until(lambda: scene.broker.committed() == 3)


async def test_one_at_the_head_of_a_quiet_lane_goes_live_when_its_live_filter_is_back(
    scene: Lively,
) -> None:
    scene.without_live.add("sick")
    context = RuntimeContext(scene.sink, scene.sink, restart_first=0.2, restart_longest=0.2)
    async with Manager(context) as manager:
        sick, _ = manager.add(scene.specs("sick", "well"))
        scene.publish("a")
        await until(lambda: scene.sink.derived(SICK) == ["a"])
        assert sick.catching_up
        scene.without_live.clear()
        await until(lambda: not sick.catching_up)


@pytest.mark.parametrize("place", [0, 2, 3])
async def test_one_has_caught_up_where_only_places_without_a_message_are_left(place: int) -> None:
    """Transactions and retention leave such places. An earlier version stayed behind until the lane's next message."""
    scene, sink = MarkedScene(), Sink()
    scene.publish("a", "b", "c")
    scene.broker.seek(3)
    row = LanePosition(SICK, "0", [scene.broker.identity, place], datetime.now(UTC), 2)
    async with hosting(scene, sink, positions=(row,)) as (_, sick, _):
        assert sick.catching_up
        await sink.until(lambda: not sick.catching_up and sick.state == "running")
        assert sink.derived(SICK) == ["a", "b", "c"][place:]
        scene.publish("d")
        await sink.until(lambda: sink.derived(WELL) == ["d"])
        await sink.until(lambda: sink.derived(SICK) == ["a", "b", "c", "d"][place:])


async def test_a_position_goes_that_lies_behind_places_without_a_message() -> None:
    """The row must go, although the broker is never advanced past the gap at its position."""
    scene, sink = MarkedScene(), Sink()
    scene.fails["sick"] = lambda event: event == "c"
    async with hosting(scene, sink):
        scene.publish("a", "b", "c")
        await sink.until(lambda: sink.positions.get((SICK, "0")) is not None)
        scene.fails.clear()
        await sink.until(lambda: sink.derived(SICK) == ["a", "b", "c"])
        await sink.until(lambda: sink.positions == {(SICK, "0"): None})


@pytest.mark.rule("18: a position's row is deleted once the broker has advanced to the position")
async def test_another_owner_drops_a_position_behind_places_without_a_message() -> None:
    """The positions before the stored position have no message. An earlier version waited for an advance there."""
    scene, sink = MarkedScene(), Sink()
    scene.publish("a", "b", "c")
    scene.broker.seek(3)
    sink.positions[SICK, "0"] = [scene.broker.identity, 2]
    async with hosting(scene, sink, positions=sink.rows()) as (_, sick, _):
        await sink.until(lambda: sink.derived(SICK) == ["c"] and not sick.catching_up)
    # Set the broker back by one message, as if the last advance had not reached it.
    scene.broker.seek(2)
    async with hosting(scene, sink, positions=sink.rows()):
        await sink.until(lambda: sink.derived(WELL) == ["c"])
        await sink.until(lambda: sink.positions == {(SICK, "0"): None})
    assert scene.opened.count(("sick", "c")) == 1


async def test_failures_are_stored_of_a_message_behind_places_without_one() -> None:
    scene, sink = MarkedScene(), Sink()
    scene.publish("a", "b", "c", "d")
    scene.broker.seek(4)
    scene.fails["sick"] = lambda event: event == "d"
    sink.positions[SICK, "0"] = [scene.broker.identity, 2]
    async with hosting(scene, sink, positions=sink.rows()):
        await sink.until(lambda: sink.failures.get((SICK, "0"), 0) == 1)
        assert sink.positions[SICK, "0"] == [scene.broker.identity, 6]


async def test_a_re_emission_ends_at_positions_without_a_message() -> None:
    """The lane tail has only messages. The log ends with positions without a message, which nothing reads."""
    scene, sink = MarkedScene(), Sink()
    scene.gates["well", "a"] = anyio.Event()
    context = RuntimeContext(sink, sink, settings=RuntimeSettings(max_outstanding=2))
    async with Manager(context) as manager:
        sick, _ = manager.add(scene.specs("sick", "well"))
        scene.publish("a", "b", "c")
        await sink.until(lambda: sink.derived(SICK) == ["a", "b"])
        scene.gates["sick", "b"] = anyio.Event()
        manager.rewind(sick, [ReplayRequest(1, SICK, None, reemit=True)])
        await sink.until(lambda: scene.opened.count(("sick", "b")) == 2)
        scene.gates["well", "a"].set()
        await sink.until(lambda: sink.derived(WELL) == ["a", "b", "c"])
        scene.gates["sick", "b"].set()
        await sink.until(lambda: sink.derived(SICK) == ["a", "b", "a", "b", "c"])
        await sink.until(lambda: not sick.catching_up)


async def test_nobody_falls_behind_beyond_a_message_that_failed_and_comes_again(
    scene: Lively,
) -> None:
    """Message "a" fails and comes again, and "sick" is absent at "b". A watcher that falls behind at "b" misses "a"."""
    context = RuntimeContext(scene.sink, scene.sink, restart_first=0.01, restart_longest=0.01)
    scene.fails["sick"] = scene.fails["well"] = lambda event: event == "a"
    async with Manager(context) as manager:
        _, well = manager.add(scene.specs("sick", "well"))
        scene.publish("a")
        with anyio.fail_after(10):
            await scene.is_failing.wait()
        scene.without_live.add("sick")
        scene.fails.clear()
        await until(lambda: well.subscriber is not None and well.subscriber.is_present)
        scene.publish("b")
        (stream,) = manager.streams.values()
        await until(lambda: stream.group is not None and stream.group.state.ledger.next_seq == 2)
        assert scene.sink.derived(WELL) == [], "what lies before it comes again"
        scene.may_fail.set()
        await until(lambda: scene.broker.committed() == 2)
        await until(lambda: sorted(scene.sink.derived(SICK)) == ["a", "b"])
        assert scene.sink.derived(WELL) == ["a", "b"]


def test_a_redelivery_of_an_earlier_message_does_not_adjoin_the_next() -> None:
    """The lane tail begins after message 4. Message 2 comes again, and must not count as the one before 3."""
    lane_tail = LaneTail(["log", 4], most=10)
    lane_tail.append(LogMessage(["log", 2], "c", None), 0)
    assert lane_tail.newest is None
    assert not lane_tail.covers(["log", 3])
    lane_tail.append(LogMessage(["log", 5], "f", None), 0)
    assert lane_tail.newest == ["log", 5]
    assert not lane_tail.covers(["log", 3])
    assert lane_tail.covers(["log", 5])


def test_broadcasts_of_a_recreated_lane_stay_in_the_tail() -> None:
    lane_tail = LaneTail(["log", 4], most=10)
    lane_tail.append(LogMessage(["another", 0], "a", None), 0)
    assert lane_tail.newest == ["another", 0]


@pytest.mark.rule("18: a position's row is deleted once the broker has advanced to the position")
@pytest.mark.parametrize("breaks", [False, True])
async def test_the_row_of_one_that_failed_on_the_last_message_goes_without_another(
    scene: Lively, *, breaks: bool
) -> None:
    """The lane's next message may come much later. An earlier version stored the row until then."""
    sink = scene.sink
    scene.fails["sick"] = lambda event: bool(event == "b")
    async with hosting(scene, sink) as (manager, *_):
        scene.publish("a", "b")
        await sink.until(lambda: sink.positions.get((1, "0")) is not None)
        await sink.until(lambda: scene.broker.committed() == 2)
        if breaks:
            scene.is_breaking = True
            scene.publish("c", lane=1)
            (stream,) = manager.streams.values()
            before = stream.group
            await sink.until(lambda: stream.group not in {before, None})
            scene.is_breaking = False
        scene.fails.clear()
        await sink.until(lambda: "b" in sink.derived(1))
        await sink.until(lambda: sink.positions[1, "0"] is None)


@pytest.mark.rule("18: a position's row is deleted once the broker has advanced to the position")
async def test_the_row_of_one_that_has_caught_up_goes_if_what_comes_next_is_given_up(
    scene: Lively,
) -> None:
    """One advance contains the watcher's last messages and "d", which the broker dead-letters. No message follows.

    The simulation found this case with seed 2619.
    """
    sink = scene.sink
    scene.broker.max_deliveries = 1
    scene.may_fail.set()
    scene.fails["sick"] = scene.fails["well"] = lambda event: bool(event == "d")
    scene.gates["well", "b"] = anyio.Event()
    async with hosting(scene, sink, positions=(scene.row(SICK, 0),)) as (_, sick, _):
        scene.publish("a", "b", "c")
        await sink.until(lambda: sink.derived(SICK) == ["a", "b", "c"] and not sick.catching_up)
        scene.publish("d")
        await sink.until(lambda: ("sick", "d") in scene.opened)
        scene.gates["well", "b"].set()
        await sink.until(lambda: scene.broker.dead_letters == ["d"])
        await sink.until(lambda: sink.positions[SICK, "0"] is None)


@pytest.mark.rule("18: a position's row is deleted once the broker has advanced to the position")
async def test_a_watcher_that_has_read_a_redelivered_message_counts_as_acked(scene: Lively) -> None:
    """In an earlier version, the watcher's row was gone when the broker redelivered "a".

    So "a" failed for all watchers, until the broker gave "a" up (seed 2619).
    """
    sink = scene.sink
    scene.broker.max_deliveries = 2
    scene.fails["sick"] = scene.fails["well"] = always
    async with hosting(scene, sink, positions=(scene.row(SICK, 0),)) as (_, sick, _):
        scene.publish("a")
        with anyio.fail_after(10):
            await scene.is_failing.wait()
        scene.is_quiet = True
        scene.may_fail.set()
        await sink.until(lambda: bool(scene.advanced))
        del scene.fails["sick"]
        await sink.until(lambda: sink.derived(SICK) == ["a"] and not sick.catching_up)
        scene.fails["sick"] = always
        scene.is_quiet = False
        scene.broker.record_change()
        await sink.until(lambda: scene.broker.committed() == 1)
        assert scene.broker.dead_letters == []
        del scene.fails["well"]
        await sink.until(lambda: sink.derived(WELL) == ["a"])


async def test_nothing_is_kept_in_memory_for_a_watcher_that_was_deleted(scene: Lively) -> None:
    """A lane tail may take 4 MiB, so it must go when no watcher is behind in the lane any longer."""
    sink = scene.sink
    scene.fails["sick"] = lambda _: True
    async with hosting(scene, sink) as (manager, sick, _):
        scene.publish("a")
        await sink.until(lambda: sink.positions.get((1, "0")) is not None)
        scene.publish("b", "c")
        await sink.until(lambda: scene.broker.committed() == 3)
        (stream,) = manager.streams.values()
        assert list(stream.group.state.lane_tail) == [0]
        manager.remove(sick, on_purpose=True)
        assert not stream.group.state.lane_tail


def test_how_far_the_broker_was_advanced_is_known_while_somebody_is_behind() -> None:
    backlogs = Backlogs(Sink())
    fence, now = Fence("stream", "me", 1), datetime(2026, 1, 1, tzinfo=UTC)
    for watcher_id in (1, 2):
        watcher = WatcherRef(watcher_id, 0)
        backlogs.fall_behind(watcher, 0, ["log", 3], fence, now, lambda _: None)
    backlogs.mark_advanced(0, ["log", 7])
    # The broker has redelivered messages, so an earlier position is advanced later.
    backlogs.mark_advanced(0, ["log", 5])
    assert backlogs.advanced_to == {0: ["log", 7]}
    backlogs.mark_advanced(0, ["made anew", 1])
    assert backlogs.advanced_to == {0: ["made anew", 1]}
    for backlog in backlogs.all():
        assert backlogs.advanced_to
        backlogs.end(backlog)
    assert not backlogs.advanced_to


class Counting(Breaking):
    """Counts the look-ups of lane ends, and the calls of `read_lane`.

    The lane "gone" does not exist, the end of "leaderless" is unknown, and neither can be read.
    The lane "empty" has no messages.
    """

    async def find_positions(self, start: datetime | None) -> Mapping[Hashable, list[Any]]:
        assert isinstance(self.scene, Counted)
        self.scene.looks += 1
        found = await super().find_positions(start)
        await self.scene.may_tell.wait()
        if "leaderless" in found:
            raise BrokerUnavailable("a lane has no leader")
        return {"empty": [self.scene.broker.identity, 0], **found}

    async def read_lane(
        self, lane: Hashable, position: list[Any]
    ) -> AsyncIterator[tuple[Any, InMemoryMessage]]:
        assert isinstance(self.scene, Counted)
        self.scene.readings += 1
        if lane in ("gone", "leaderless"):
            raise BrokerUnavailable(f"nobody leads {lane}")
        async for pair in super().read_lane(lane, position):
            yield pair


class WatchingCounting(Watching):
    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        return Counting(Scene.by_name[kwargs["scene"]])


class Counted(Scene):
    def __init__(self) -> None:
        super().__init__()
        self.looks = self.readings = 0
        self.may_tell = anyio.Event()
        """While it is set, look-ups return. Each returns the ends of the time at which it began."""
        self.may_tell.set()

    def watcher(self, name: str) -> Watching:
        return WatchingCounting(scene=self.name, name=name)

    def rows(self, *lanes: str) -> tuple[LanePosition, ...]:
        """Return positions at the beginning of these lanes, for the sick watcher."""
        begin, now = [self.broker.identity, 0], datetime.now(UTC)
        return tuple(LanePosition(SICK, f'"{lane}"', begin, now) for lane in lanes)


@pytest.mark.rule("18: a lane that waits delays no other lane")
async def test_a_lane_whose_end_nobody_tells_holds_up_no_other() -> None:
    scene, sink = Counted(), Sink()
    scene.publish("first", lane="leaderless")
    scene.publish(*range(5), lane="led")
    # The broker has advanced past all messages, so none is broadcast.
    scene.broker.seek(1, lane="leaderless")
    scene.broker.seek(5, lane="led")
    rows = scene.rows("leaderless", "led")
    async with hosting(scene, sink, positions=rows) as (_, sick, _):
        await sink.until(lambda: sink.derived(SICK) == [*range(5)])
        await sink.until(lambda: "lead" in str(sick.catching_up[SICK]))
        # The next broadcast of the lane lets the watcher go live there.
        scene.publish(5, lane="led")
        await sink.until(lambda: sink.positions[SICK, '"led"'] is None)
        assert sink.derived(SICK) == [*range(6)]


async def test_it_is_not_asked_again_and_again_where_a_lane_ends_that_is_gone() -> None:
    scene, sink = Counted(), Sink()
    async with hosting(scene, sink, positions=scene.rows("gone")) as (_, sick, _):
        await sink.until(lambda: scene.readings > 10)
        assert "nobody leads gone" in str(sick.catching_up[SICK])
        assert scene.looks == 1


async def test_one_that_is_behind_in_a_lane_that_was_made_anew_and_is_empty_has_caught_up() -> None:
    """The simulation's seed 901285."""
    scene, sink = Counted(), Sink()
    row = LanePosition(SICK, '"empty"', ["its predecessor", 3], datetime.now(UTC))
    async with hosting(scene, sink, positions=(row,)) as (_, sick, _):
        assert sick.catching_up
        await sink.until(lambda: not sick.catching_up)
        scene.publish("first", lane="empty")
        await sink.until(lambda: sink.derived(SICK) == ["first"])


async def test_where_a_lane_ends_is_asked_once_more_if_it_falls_behind_there_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The end must be looked up again if the watcher falls behind during a look-up (seed 902532)."""
    monkeypatch.setattr("triggerer.streams.catchup.reading.backlog_reader._IDLE_S", 0.02)
    scene, sink = Counted(), Sink()
    scene.may_tell = anyio.Event()
    async with hosting(scene, sink, positions=scene.rows("led")) as (_, sick, _):
        await sink.until(lambda: scene.looks == 1)
        scene.fails["sick"] = lambda event: event == 1
        scene.publish(0, 1, lane="other")
        await sink.until(lambda: (SICK, '"other"') in sink.positions)
        scene.fails.clear()
        scene.publish("first", lane="led")
        await sink.until(lambda: sink.positions.get((SICK, '"led"'), 0) is None)
        await sink.until(lambda: 1 in sink.derived(SICK))
        # Now the watcher is behind only in "other", and keeps reading this lane.
        before = scene.readings
        with anyio.move_on_after(0.1):
            # The last call of `read_lane` may have been made already.
            await sink.until(lambda: scene.readings > before)
        scene.may_tell.set()
        await sink.until(lambda: not sick.catching_up)


@pytest.mark.rule("18: a lane that waits delays no other lane")
async def test_a_lane_for_which_no_other_message_can_be_tried_holds_up_no_other() -> None:
    scene, sink = Counted(), Sink()
    gone, led = scene.rows("gone", "led")
    rows = (gone._replace(failures=MAX_DELIVERIES), led)
    settings = RuntimeSettings(max_deliveries=MAX_DELIVERIES)
    # A filter that must be started again waits for long.
    context = RuntimeContext(
        sink, sink, sink, settings=settings, restart_first=1e3, restart_longest=1e6
    )
    async with Manager(context) as manager:
        sick, _ = manager.add(scene.specs("sick", "well", positions=rows))
        await sink.until(lambda: "nobody leads gone" in str(sick.catching_up[SICK]))
        scene.publish(*range(3), lane="led")
        await sink.until(lambda: sink.derived(SICK) == [*range(3)])
