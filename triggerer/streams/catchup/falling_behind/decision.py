"""Decides whether a watcher falls behind at a message that it has failed (contract, rule 18)."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from typing import Final

from triggerer.abc import AdvanceOutcome
from triggerer.domain.events import Fence, WatcherRef
from triggerer.domain.watchers.lane_positions import Position, is_before
from triggerer.streams.delivery.derived_event import Deriver
from triggerer.streams.delivery.group_state import GroupState
from triggerer.streams.delivery.lane import Entry, Lane
from triggerer.streams.delivery.subscribers import Subscribers

_MOST_FAILED: Final = 256
"""If a larger number of lanes has failed, the lanes without outstanding messages are forgotten."""


class FallingBehind:
    """For a log: decides the outcome of the message at a lane's head, if a subscriber has failed or rejected it.

    All subscribers have resolved the message by then. There are two cases:

    - A watcher acked or rejected the message. Then the watchers that failed it fall behind: their positions are stored,
      and the lane continues.
    - No watcher acked or rejected the message. Then the broker redelivers this message and all later messages of the
      lane.

    A watcher that is behind in the lane counts as acking once it has read the message during catch-up. Before that, the
    watcher does not count.

    After a failed message, later messages of the lane may reach the head, although the broker will redeliver them. No
    watcher falls behind at such a message. Otherwise the watcher's position would be after the failed message, and the
    watcher would miss it.
    """

    def __init__(self, state: GroupState, subscribers: Subscribers) -> None:
        self._state = state
        self._subscribers = subscribers
        self._unsuitable: set[Hashable] = set()
        """The lanes whose key or position cannot be stored. No watcher falls behind in these lanes."""
        self._look_through_at = _MOST_FAILED

    def record_redelivery(self, lane: Lane) -> None:
        """Record that the broker has learned of the lane's failed message, and will deliver it again."""
        state = self._state
        position = state.failing.pop(lane.key, None)
        if position is not None:
            failed_in = state.failed_in
            failed_in[lane.key] = position
            state.redelivered_before[lane.key] = state.ledger.next_seq
            if len(failed_in) > self._look_through_at:
                self._forget_empty_lanes()
                # If many lanes fail at the same time, do not search them at each failure.
                self._look_through_at = max(_MOST_FAILED, 2 * len(failed_in))

    def _is_redelivered(self, entry: Entry, lane: Lane, position: Position) -> bool:
        """Return whether the broker redelivers this message, because an earlier message of the lane has failed."""
        return self._state.is_redelivered_in_log(lane.key, entry.seq, position)

    def _forget_empty_lanes(self) -> None:
        """Forget failures in lanes that are empty now. If each message is its own lane, many lanes are empty."""
        lanes, before = self._state.lanes, self._state.redelivered_before
        for key, until in list(before.items()):
            lane = lanes.get(key)
            if until <= self._state.ledger.next_seq and (lane is None or not lane.outstanding):
                del before[key], self._state.failed_in[key]

    @property
    def _is_possible(self) -> bool:
        return self._state.backlogs.is_enabled and self._state.reads_log

    def decide(self, entry: Entry, outcome: AdvanceOutcome) -> AdvanceOutcome | None:
        """Return the outcome for the broker. None: undecided while positions are being stored. See `lane.Decide`."""
        decided = self._decide(entry, outcome)
        lane = entry.lane
        if decided is not None and decided.failed and self._is_possible and lane is not None:
            position, failing = self._state.position_of(entry), self._state.failing
            # Keep the lowest position: later in the same batch, a redelivered copy of an older message may fail too.
            if lane.key not in failing or is_before(position, failing[lane.key]):
                failing[lane.key] = position
        return decided

    def _decide(self, entry: Entry, outcome: AdvanceOutcome) -> AdvanceOutcome | None:
        state, lane = self._state, entry.lane
        if not self._is_possible or lane is None:
            return outcome
        position = state.position_of(entry)
        acked = outcome.acked + outcome.rejected
        failed = self._not_behind(lane, position, self._watchers_that_failed(entry))
        if acked and not failed:
            # Every watcher that failed the message is behind in the lane already, or has read the message while it
            # caught up.
            return AdvanceOutcome(outcome.acked + outcome.failed, 0, outcome.rejected)
        fences = {
            watcher: source.fence
            for watcher in failed
            if (source := state.source_of(watcher)) is not None
        }
        behind, read = self._catching_up_there(lane, position)
        if fences:
            if not state.may_fall_behind or lane.key in self._unsuitable:
                return outcome
            if acked - self._passing(entry, behind) + len(read) <= 0:
                return outcome
            if self._is_redelivered(entry, lane, position):
                return outcome
            return None if self._store(entry, lane, position, fences) else outcome
        if not (acked or behind or read):
            return outcome
        return AdvanceOutcome(outcome.acked + outcome.failed, 0, outcome.rejected)

    def _watchers_that_failed(self, entry: Entry) -> set[WatcherRef]:
        """Return the watchers that failed the message, were absent, or derived an event that the store refused."""
        failed = set(self._state.absences.find(entry.seq))
        for refused_by in (entry.nacks and entry.nacks.refused_by) or ():
            # The subscriber may have failed at a later message and left. Its watchers have failed this message too.
            assert isinstance(refused_by, Deriver)
            failed.update(refused_by.source.watchers)
        return failed

    def _not_behind(
        self, lane: Lane, position: Position, watchers: Collection[WatcherRef]
    ) -> set[WatcherRef]:
        """Return the watchers that must still fall behind at the message.

        A watcher is left out if it has read the message while it caught up, or if it is behind in the lane already and
        its position is durable. While the position is not durable, the watcher is included, so that the lane waits.
        """
        backlogs = self._state.backlogs.by_lane.get(lane.key, {})
        return {
            watcher
            for watcher in watchers
            if (backlog := backlogs.get(watcher.watcher_id)) is None
            or (
                not is_before(position, backlog.cursor)
                and (backlog.is_caught_up or not backlog.is_stored)
            )
        }

    def _catching_up_there(
        self, lane: Lane, position: Position
    ) -> tuple[set[WatcherRef], set[WatcherRef]]:
        """Return the watchers behind at this message, and the watchers that read it while they caught up."""
        behind, read = set[WatcherRef](), set[WatcherRef]()
        for backlog in self._state.backlogs.by_lane.get(lane.key, {}).values():
            if self._state.source_of(backlog.watcher) is None:
                continue
            if is_before(position, backlog.cursor):
                read.add(backlog.watcher)
            elif backlog.is_stored and not backlog.is_caught_up:
                behind.add(backlog.watcher)
        return behind, read

    def _passing(self, entry: Entry, behind: set[WatcherRef]) -> int:
        """Count the subscribers that acked without receiving the message, because all their watchers are behind."""
        if not behind:
            return 0
        return sum(
            behind.issuperset(subscriber.source.watchers)
            and not (entry.nacks is not None and entry.nacks.has_refused(subscriber))
            for subscriber in self._subscribers.answered_for(entry.seq)
        )

    def _store(
        self,
        entry: Entry,
        lane: Lane,
        position: Position,
        failed: Mapping[WatcherRef, Fence | None],
    ) -> bool:
        state = self._state
        now = state.now()

        def on_answer(error: Exception | None) -> None:
            if error is not None:
                # The store refused the position. From now on no watcher falls behind in this lane, and the next
                # decision lets the broker redeliver the message. If the lease was lost, nothing is advanced anyway.
                self._unsuitable.add(lane.key)
            entry.unresolved -= 1
            if not entry.unresolved and lane.head is entry:
                state.lanes.queue(lane)
                state.progress.signal()

        # Later in the lane, there may be redelivered messages with lower positions. A watcher that falls behind now
        # misses them too, so its backlog begins at the lowest of these positions.
        lowest, broadcast_to = state.span_from(entry)
        # The store may answer at once. This extra count keeps the message unresolved until the positions of all
        # watchers are submitted.
        entry.unresolved += 1
        for watcher in sorted(failed, key=_by_id):
            fence = failed[watcher]
            is_known = state.backlogs.find(lane.key, watcher.watcher_id) is not None
            place = state.position_since_cut(lane.key, position) if is_known else lowest
            entry.unresolved += 1
            if fence is None or not state.backlogs.fall_behind(
                watcher, lane.key, place, fence, now, on_answer, broadcast_to=broadcast_to
            ):
                self._unsuitable.add(lane.key)
                entry.unresolved -= 1
            elif lane.key in state.backlogs.by_lane:
                state.lane_tail_of(lane.key).record_earlier_broadcast(broadcast_to)
        entry.unresolved -= 1
        return lane.key not in self._unsuitable


def _by_id(watcher: WatcherRef) -> int:
    return watcher.watcher_id
