"""The positions of watchers that are behind in lanes of a log."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from triggerer.abc import SharedStreamProducer
from triggerer.domain.events import EventSource, Fence, WatcherRef
from triggerer.domain.watchers.lane_positions import LanePosition, PositionChange
from triggerer.processes.own_lease import OwnLease
from triggerer.streams.catchup.backlogs.backlog import Backlog
from triggerer.streams.catchup.backlogs.backlogs import Backlogs
from triggerer.streams.clock import SystemClock
from triggerer.streams.delivery.group_state import GroupState
from triggerer.streams.delivery.lane import OutcomeCounts
from triggerer.streams.delivery.lanes import Lanes
from triggerer.streams.delivery.ledger import Ledger
from triggerer.streams.settings import RuntimeSettings

WATCHER = WatcherRef(1, 1)
FENCE = Fence("stream", "me", 1)
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Sink:
    """Stores nothing, and records the changes that it receives."""

    def __init__(self) -> None:
        self.changes: list[PositionChange] = []

    def submit_nowait(self, change: PositionChange) -> None:
        self.changes.append(change)

    def end_replay_nowait(self, end: Any) -> None:
        raise AssertionError


def ignore(_: Exception | None) -> None:
    pass


def live_in(backlogs: Backlogs, *, position: int, cursor: int) -> Backlog:
    """Return the backlog of a live watcher that has read up to `cursor`, and whose stored position is `position`."""
    backlogs.fall_behind(WATCHER, 0, ["log", position], FENCE, NOW, ignore)
    backlog = backlogs.find(0, 1)
    assert backlog is not None
    backlog.cursor = ["log", cursor]
    backlogs.go_live(backlog)
    return backlog


def test_a_watcher_that_falls_behind_again_rereads_messages_that_are_not_durable() -> None:
    """The live filter fails while events of the catch-up are not durable (seed 1631)."""
    sink = Sink()
    backlogs = Backlogs(sink)
    before = live_in(backlogs, position=3, cursor=7)
    backlogs.fall_behind(WATCHER, 0, ["log", 7], FENCE, NOW, ignore)
    now = backlogs.find(0, 1)
    assert now is not None
    assert (now.position, now.cursor, now.is_caught_up) == (["log", 3], ["log", 3], False)
    assert before.is_gone, "what was read of it no longer counts"
    assert list(backlogs.behind(1)) == [now]
    assert backlogs.live == {}
    assert sink.changes[-1].position == ["log", 3]


def test_a_durable_watcher_that_falls_behind_again_begins_at_the_failure() -> None:
    sink = Sink()
    backlogs = Backlogs(sink)
    before = live_in(backlogs, position=7, cursor=7)
    backlogs.fall_behind(WATCHER, 0, ["log", 9], FENCE, NOW, ignore)
    assert backlogs.find(0, 1) is before
    assert before.position == before.cursor == sink.changes[-1].position == ["log", 9]


def test_a_backlog_after_a_stored_position_is_no_empty_stretch() -> None:
    """Positions 4 to 6 have no messages, and the watcher is at 7. The store has position 4.

    The broker may never pass 4, and a later owner must not wait for 7. But once the watcher has
    failed with message 7, the store has 7.
    """
    sink = Sink()
    backlogs = Backlogs(sink)
    backlog = live_in(backlogs, position=7, cursor=7)
    backlog.gap, backlog.log_end = (["log", 4], ["log", 7]), 7
    backlogs.writes.move(backlog)
    assert (sink.changes[-1].position, sink.changes[-1].log_end) == (["log", 4], 4)
    sink.changes[-1].on_done(None)
    backlog.log_end = 9
    backlogs.writes.move(backlog)
    assert (sink.changes[-1].position, sink.changes[-1].log_end) == (["log", 4], 9)
    backlogs.fall_behind(WATCHER, 0, ["log", 7], FENCE, NOW, ignore)
    assert sink.changes[-1].position == ["log", 7]


@pytest.mark.rule("18: a replay sets one watcher back, never forward")
def test_one_that_is_set_back_further_is_stored_only_when_the_further_place_is() -> None:
    """The watcher was set back to 5 before the group's committed position, 2, was known (seed 581)."""
    sink = Sink()
    backlogs = Backlogs(sink)
    source = EventSource((WATCHER,), FENCE)
    backlogs.load(WATCHER, FENCE, LanePosition(1, "0", ["log", 5], NOW, rewound_to=["log", 5]))
    assert backlogs.are_stored(source, 0)
    (backlog,) = backlogs.all()
    backlogs.rewind_from(backlog, ["log", 2], None, NOW)
    assert not backlogs.are_stored(source, 0)
    assert backlogs.to_catch_up(1) == []
    sink.changes[-1].on_done(None)
    assert backlogs.are_stored(source, 0)
    assert [one.position for one in backlogs.to_catch_up(1)] == [["log", 2]]


class OfPositions(SharedStreamProducer):
    """The broker payload of a message is the message's number."""

    def get_position(self, broker_payload: Any) -> list[Any]:
        return ["log", broker_payload]

    def get_advance_lane(self, broker_payload: Any) -> int:
        return 0

    def open_stream(self) -> Any:
        raise NotImplementedError

    def read_lane(self, lane: Any, position: Any) -> Any:
        raise NotImplementedError

    async def advance(self, batch: Any) -> None:
        raise NotImplementedError

    async def aclose(self) -> None:
        raise NotImplementedError


def test_a_watcher_is_set_back_to_what_comes_again_behind_what_was_pulled_before() -> None:
    """Message 8 comes again after 11 and 12. From position 11, the watcher would never read 8 (seed 140068)."""
    lanes = Lanes()
    for seq, number in enumerate((11, 12, 8, 9)):
        lanes.append("lane", seq, number, now=0.0)
    state = state_of(lanes, Backlogs(None))
    assert state.lowest_outstanding("lane") == ["log", 8]
    assert state.lowest_outstanding("other") is None


@pytest.mark.rule("18: a replay sets one watcher back, never forward")
def test_one_that_is_set_back_misses_nothing_that_comes_again_behind_what_is_advanced() -> None:
    """Messages 11 and 12 were pulled before 8 failed, so the broker redelivers 8 after the advance of 11 and 12.

    From position 11, the watcher would never read 8.
    """
    lanes, sink = Lanes(), Sink()
    backlogs = Backlogs(sink)
    state = state_of(lanes, backlogs)
    for seq, number in enumerate((8, 11, 12)):
        entry = lanes.append(0, seq, number, now=0.0)
        entry.counts, entry.unresolved = OutcomeCounts(1, 0, 0), 0
    lane = lanes.get(0)
    assert lane is not None
    lane.take(1, lambda _, outcome: outcome)
    state.failed_in[0], state.redelivered_before[0] = ["log", 8], 3
    backlogs.load(WATCHER, FENCE, LanePosition(1, "0", ["log", 11], NOW, rewound_to=["log", 11]))
    state.mark_advanced(lane.take(2, lambda _, outcome: outcome))
    lanes.append(0, 3, 8, now=0.0)
    state.append_to_lane_tail(None, 8, 0)
    (backlog,) = backlogs.all()
    assert backlog.position == ["log", 8]


@pytest.mark.rule("18: a position's row is deleted once the broker has advanced to the position")
@pytest.mark.parametrize("was_pulled_before", [False, True])
def test_an_advance_to_a_failed_message_ends_its_backlog_unless_an_earlier_one_failed(
    *, was_pulled_before: bool
) -> None:
    """An advance of messages 5 to 8 deletes the row of position 7 (seed 2619).

    If the earlier message 3 failed, the broker redelivers messages 5 to 8, so their advance does not count.
    """
    lanes, sink = Lanes(), Sink()
    backlogs = Backlogs(sink)
    state = state_of(lanes, backlogs)
    for seq, number in enumerate((5, 6, 7, 8)):
        entry = lanes.append(0, seq, number, now=0.0)
        entry.counts, entry.unresolved = OutcomeCounts(1, int(number == 7), 0), 0
    if was_pulled_before:
        state.failed_in[0], state.redelivered_before[0] = ["log", 3], 4
    live_in(backlogs, position=7, cursor=7)
    lane = lanes.get(0)
    assert lane is not None
    batch = lane.take(4, lambda _, outcome: outcome)
    state.failing[0] = ["log", 7]
    state.mark_advanced(batch)
    assert backlogs.advanced_to == {}
    assert bool(backlogs) is was_pulled_before
    assert (sink.changes[-1].position is None) is not was_pulled_before


def state_of(lanes: Lanes, backlogs: Backlogs) -> GroupState:
    clock = SystemClock()
    lease = OwnLease(timedelta(seconds=60), margin=0.0, clock=clock.monotonic)
    settings = RuntimeSettings()
    state = GroupState(
        "key",
        "key",
        settings,
        clock,
        lease,
        lanes,
        Ledger(lanes),
        backlogs,
        lambda _: None,
        str,
        lambda: NOW,
    )
    state.producer = OfPositions()
    return state
