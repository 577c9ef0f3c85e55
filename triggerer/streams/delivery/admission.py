"""Decides which messages a filter skips because its watchers are behind, or may fall behind, in the message's lane."""

from __future__ import annotations

from collections.abc import Hashable

from triggerer.domain.events import EventSource
from triggerer.streams.delivery.derived_event import Deriver
from triggerer.streams.delivery.lane import Entry, Lane


class Admission:
    """Decides for one subscriber which messages its filter receives, and for which watchers the derived events count.

    The subscriber calls `admits` only while a lane of the stream has a backlog, or if the filter was absent.
    """

    __slots__ = ("_member", "_missed_to", "open_source", "sent_ahead", "was_absent")

    def __init__(self, member: Deriver) -> None:
        self._member = member
        self.was_absent = False
        """True if the filter may have missed outstanding messages, so that its watchers may fall behind at them."""
        self.sent_ahead = 0
        """The number of the first event that `Subscriber.known_ahead` has not returned."""
        self.open_source: EventSource | None = None
        """The event source for the open message's events. None: the subscriber's own.

        If some watchers of the subscriber are behind, this event source has only the other watchers.
        """
        self._missed_to = 0
        """The number after the last message that `_miss` has counted as failed."""

    def open_to_all(self) -> None:
        """Let events of the open message count for all watchers of the subscriber."""
        self.open_source = None

    def admits(self, entry: Entry) -> bool:
        """Return whether the filter receives this message.

        A filter skips the message if all of its watchers are behind in the lane. In four other cases the filter skips
        the message too, and the message counts as failed for the filter's watchers:

        - The filter was absent, and the lane still has a message that was broadcast before the filter returned. The
          group must first decide about that message.
        - The filter was absent, and the broker redelivers a failed message of the lane.
        - The filter was absent, and skipped the message at the lane's head. Not all of its watchers are behind yet.
        - In a log, a watcher is behind in the lane, and its position is not durable.

        The runtime sends messages to an isolated filter ahead. If the filter has already received a message that it
        should skip, the result is True. The filter's events and rejections of this message then count for no watcher.
        """
        state, lane = self._member.state, entry.lane
        assert lane is not None
        assert state.producer is not None
        if self.was_absent and (
            self._is_undecided(lane)
            or (self._has_missed_head(lane) and not self._is_behind_at(entry, lane))
        ):
            self._miss(entry)
            return self._yields_for_nobody(entry)
        self.open_source = None
        if lane.key in state.backlogs.by_lane:
            position = state.position_of(entry)
            source = state.backlogs.live_source(self._member.source, lane.key, position)
            if (
                source is not self._member.source
                and state.reads_log
                and not state.backlogs.are_stored(self._member.source, lane.key)
            ):
                # A watcher is behind in this lane, and its position is not durable yet. For
                # example, an earlier group ended while the position was being stored. Fail the
                # message, so that the lane waits until the position is durable.
                self._miss(entry)
                return self._yields_for_nobody(entry)
            if source is None:
                return self._yields_for_nobody(entry)
            self.open_source = source if source is not self._member.source else None
        return True

    def _yields_for_nobody(self, entry: Entry) -> bool:
        """Return True if the message was sent ahead to the filter, so that the stream must yield the message.

        The events that the filter derives from the message then count for no watcher.
        """
        if entry.seq >= self.sent_ahead:
            return False
        self.open_source = EventSource((), self._member.source.fence)
        return True

    def waits_for(self, key: Hashable) -> bool:
        """Return whether the filter skips this lane now, because messages from before its return are undecided."""
        lane = self._member.state.lanes.get(key)
        return self.was_absent and lane is not None and self._reads_nothing_of(lane)

    @property
    def may_skip(self) -> bool:
        """Return whether there may be messages that the filter skips."""
        return self.was_absent or bool(self._member.state.backlogs.by_lane)

    def will_skip(self, entry: Entry) -> bool:
        """Return whether the filter will skip this message, as far as is known now."""
        state, lane = self._member.state, entry.lane
        assert lane is not None
        if entry.seq < self.sent_ahead:
            return False
        if self.was_absent and self._reads_nothing_of(lane):
            return True
        if lane.key not in state.backlogs.by_lane:
            return False
        position = state.position_of(entry)
        return state.backlogs.live_source(self._member.source, lane.key, position) is None

    def _miss(self, entry: Entry) -> None:
        """Count this message as failed. At the lane's head, the group decides whether the watchers fall behind."""
        state, seq = self._member.state, entry.seq
        state.absences.begin(self._member.source.watchers, seq)
        state.absences.end(self._member.source.watchers, seq + 1)
        state.ledger.miss(self._member, entry)
        self._missed_to = seq + 1

    def _reads_nothing_of(self, lane: Lane) -> bool:
        return self._is_undecided(lane) or self._has_missed_head(lane)

    def _is_undecided(self, lane: Lane) -> bool:
        head = lane.head
        return head is not None and (
            head.seq < self._member.joined_at or self._member.state.is_redelivered(head, lane.key)
        )

    def _has_missed_head(self, lane: Lane) -> bool:
        """Return whether the filter missed the lane's head, so that its watchers will soon fall behind in the lane."""
        head = lane.head
        if head is None or head.seq >= self._missed_to:
            return False
        return head.nacks is not None and head.nacks.has_refused(self._member)

    def _is_behind_at(self, entry: Entry, lane: Lane) -> bool:
        """Return whether every watcher of the subscriber is behind in the lane at this message."""
        state = self._member.state
        if lane.key not in state.backlogs.by_lane:
            return False
        return (
            state.backlogs.live_source(self._member.source, lane.key, state.position_of(entry))
            is None
        )
