"""What the parts of a group share."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple, Protocol

from triggerer.abc import AdvanceItem, SharedStreamProducer, SharedStreamSelector
from triggerer.domain.events import EventSink, EventSource, WatcherRef
from triggerer.domain.watchers.lane_positions import Position, cut_before, following, is_before
from triggerer.domain.watchers.parked import ParkedStore
from triggerer.processes.own_lease import OwnLease
from triggerer.streams.catchup.backlogs.backlog import Backlog
from triggerer.streams.catchup.backlogs.backlogs import Backlogs
from triggerer.streams.catchup.backlogs.truncated_logs import mark_cut
from triggerer.streams.catchup.reading.lane_ends import LaneEnds
from triggerer.streams.catchup.reading.lane_tail import LaneTail, Message
from triggerer.streams.clock import Clock
from triggerer.streams.delivery.absences import Absences
from triggerer.streams.delivery.lanes import Entry, Lanes
from triggerer.streams.delivery.ledger import Ledger
from triggerer.streams.delivery.progress import Progress
from triggerer.streams.delivery.selection import Selection
from triggerer.streams.settings import RuntimeSettings

_MOST_NEWEST: Final = 20
_MOST_BYTES_OF_NEWEST: Final = 256 * 1024
"""Of each."""


class Stages(EventSink, Protocol):
    """See `triggerer.streams.delivery.staged_events.Staging`."""

    is_ahead: bool

    def flush(self) -> None: ...
    def mark_advanced(self) -> None: ...
    def end(self) -> None: ...


class Reader(Protocol):
    """Awaits the next event of the stream."""

    def wake(self) -> None: ...


class Newest(NamedTuple):
    """One of the messages of a queue that were broadcast last."""

    lane: Hashable
    event: Any
    payload: Any
    seq: int


@dataclass(slots=True, eq=False)
class GroupState:
    """One group's log and lanes, its producer, and whether it is ending. Each part of the group is handed this object.

    `Group` makes the parts. Where one needs another it is handed that too.
    """

    key: Hashable
    name: str
    """What people read in place of the key."""
    settings: RuntimeSettings
    clock: Clock
    lease: OwnLease
    lanes: Lanes
    ledger: Ledger
    backlogs: Backlogs
    """Who is behind where; outlives the group."""
    source_of: Callable[[WatcherRef], EventSource | None]
    """That of the trigger which serves a watcher, also if it could not be made; None: the watcher is no member."""
    now: Callable[[], datetime]
    """For times that are shown."""
    parked: ParkedStore | None = None
    """Where messages are kept; outlives the group."""
    hands_over_at_bound: bool = False
    """Whether the producer is handed what cannot be kept, since a bound is reached; otherwise the stream waits."""
    blocked_by: dict[WatcherRef, Exception] = field(default_factory=dict)
    """Those for whom a message cannot be kept now. The stream waits."""
    standing: dict[Hashable, str] = field(default_factory=dict)
    """By lane why it stands, as the producer says."""
    failing: dict[Hashable, Position] = field(default_factory=dict)
    """By lane the place of a message that has failed, while the broker is being told; of several the one furthest back.

    What is outstanding behind it comes again, and what is broadcast until then."""
    redelivered_before: dict[Hashable, int] = field(default_factory=dict)
    """By lane the number before which what is outstanding comes again, behind a message that has failed."""
    failed_in: dict[Hashable, Position] = field(default_factory=dict)
    """By lane the place of that message, of which the broker was told last."""
    is_poll_waiting: bool = False
    """Whether the poll holds a message that it has pulled, until it may be broadcast."""
    on_blocked: Callable[[], None] = lambda: None
    """Called when those have changed."""
    selectors: dict[int, SharedStreamSelector | None] = field(default_factory=dict)
    """By watcher the selector of the trigger that was made for it last."""
    absences: Absences = field(default_factory=Absences)
    lane_tail: dict[Hashable, tuple[object, LaneTail]] = field(default_factory=dict)
    """By lane those that are behind there, and what was broadcast since the first of them fell behind."""
    newest: deque[Newest] = field(default_factory=lambda: deque(maxlen=_MOST_NEWEST))
    """Of a queue in which somebody is behind the messages that were broadcast last: to be tried (`probes.py`)."""
    lane_ends: LaneEnds = field(default_factory=LaneEnds)
    progress: Progress = field(default_factory=Progress)
    selection: Selection = field(default_factory=Selection)
    readers: dict[Reader, None] = field(default_factory=dict)
    """Those to be woken by the next broadcast, once."""
    producer: SharedStreamProducer | None = None
    """Set in ack mode, once the stream has been opened."""
    staging: Stages | None = None
    """Set then too, where the state goes with the events."""
    is_stopping: bool = False
    """Whether nothing more is pulled: the service stops, or the group was closed."""
    is_ending: bool = False
    """Whether nobody can join any more. Set where a failure is first seen, before anything is awaited."""
    is_closed: bool = False
    """Whether nothing more may be broadcast or advanced.

    Cancelling the tasks is not enough: one that was woken before runs once more.
    """

    @property
    def may_act(self) -> bool:
        """Whether anything may be broadcast or advanced now: it is not closed, and the lease on the stream holds.

        To be looked at after each wait, during which the process may have been stopped or the machine suspended.
        """
        return not (self.is_closed or self.lease.is_over)

    @property
    def may_fall_behind(self) -> bool:
        """Whether a watcher that fails a message falls behind alone, and that is stored."""
        return self.backlogs.may_grow and (self.reads_log or self.stores_messages)

    @property
    def reads_log(self) -> bool:
        """Whether what lies behind can be read again."""
        return self.producer is not None and is_log(type(self.producer))

    def is_redelivered(self, entry: Entry, lane: Hashable) -> bool:
        """Whether this message comes again with what is behind it in its lane, since one before it has failed."""
        return lane in self.failing or entry.seq < self.redelivered_before.get(lane, 0)

    def is_redelivered_in_log(self, lane: Hashable, seq: int, position: Position) -> bool:
        """Whether a message of a log, with this number, was pulled before the redelivery of one that lies before it."""
        return lane in self.failing or self._was_pulled_before_redelivery(lane, seq, position)

    def _was_pulled_before_redelivery(self, lane: Hashable, seq: int, position: Position) -> bool:
        """The same, where the broker has been told of that failure."""
        before = self.redelivered_before.get(lane)
        if before is None:
            return False
        # The poll may have held one back, which it had pulled before.
        return seq < before or (seq == before and is_before(self.failed_in[lane], position))

    @property
    def awaits_redelivery(self) -> bool:
        """Whether an event that was pulled before a message failed may still be broadcast, before the redelivery."""
        head = self.ledger.head
        return bool(self.failing) or any(until > head for until in self.redelivered_before.values())

    def awaits_redelivery_in(self, lane: Hashable) -> bool:
        """The same, in this lane."""
        return lane in self.failing or self.redelivered_before.get(lane, 0) > self.ledger.head

    @property
    def stores_messages(self) -> bool:
        """Whether the source is a queue, and what somebody misses is stored."""
        return (
            self.parked is not None and self.producer is not None and is_queue(type(self.producer))
        )

    def position_of(self, entry: Entry) -> Position:
        """The position of a message in its lane; in a queue it has the message's number in this group."""
        assert self.producer is not None
        if self.reads_log:
            return self.producer.get_position(entry.payload)
        return [None, entry.seq]

    def append_to_lane_tail(self, event: Any, payload: Any, size_bytes: int) -> None:
        """Keep what has just been broadcast, if somebody is behind in its lane, for who has nearly caught up."""
        assert self.producer is not None
        lane = self.producer.get_advance_lane(payload)
        if lane in self.backlogs.by_lane:
            position = self.producer.get_position(payload)
            lane_tail = self.lane_tail_of(lane)
            if position[0] is not lane_tail.incarnation and lane_tail.record_incarnation(
                position[0]
            ):
                mark_cut(self.backlogs, lane, position[0], self.now())
            if lane in self.backlogs.rewound:
                self.backlogs.record_broadcast(lane, position, self.now())
            self.lane_tail_of(lane).append(Message(position, event, payload), size_bytes)

    def record_newest(self, entry: Entry, size_bytes: int) -> None:
        """Keep what has just been broadcast of a queue in which somebody is behind, unless it is large."""
        if size_bytes <= _MOST_BYTES_OF_NEWEST:
            assert entry.lane is not None
            self.newest.append(Newest(entry.lane.key, entry.event, entry.payload, entry.seq))

    def mark_advanced(self, batch: Sequence[AdvanceItem]) -> None:
        """Forget the positions of watchers that have caught up, and to which the broker is advanced now."""
        assert self.producer is not None
        key = self.producer.get_advance_lane(batch[-1].broker_payload)
        if self.stores_messages:
            for backlog in list(self.backlogs.live.get(key, ())):
                self._end_in_queue(backlog)
            return
        if key not in self.backlogs.by_lane:
            return
        # Where one has failed, the broker is advanced to it.
        count = next((at for at, item in enumerate(batch) if item.outcome.failed), len(batch))
        if not count:
            return
        position = self.producer.get_position(batch[count - 1].broker_payload)
        lane = self.lanes.get(key)
        if lane is not None:
            done_to = lane.in_flight_to if count == len(batch) else lane.clean_to
            if self._was_pulled_before_redelivery(key, done_to - 1, position):
                # The broker was told of a failure before it, and is not advanced to it.
                return
        if cut_before(position, self.lane_tail_of(key).incarnation) is not None:
            # The log has lost it: the broker stands before.
            return
        reached = following(position)
        self.backlogs.mark_advanced(key, reached)
        for backlog in list(self.backlogs.live.get(key, ())):
            if backlog.position == backlog.cursor and not is_before(reached, backlog.last_end):
                self._end(backlog)

    def lowest_outstanding(self, lane: Hashable) -> Position | None:
        """The lowest position of what was broadcast in a lane and is not being advanced; None if there is nothing.

        What comes again may lie behind what had been pulled before that.
        """
        entry, place = self.head_of(lane), None
        while entry is not None and self.producer is not None:
            position = self.producer.get_position(entry.payload)
            if place is None or is_before(position, place):
                place = position
            entry = entry.next
        return place

    def head_of(self, lane: Hashable) -> Entry | None:
        """The entry of that message."""
        found = self.lanes.get(lane)
        return None if found is None else found.head

    def last_broadcast_from(self, entry: Entry) -> Position:
        """The furthest position in its lane of what is outstanding, from this message on."""
        return self.span_from(entry)[1]

    def span_from(self, entry: Entry) -> tuple[Position, Position]:
        """The lowest and the furthest position in its lane of what is outstanding, from this message on.

        What comes again may lie behind what had been pulled before that.
        """
        assert self.producer is not None
        lowest = furthest = self.producer.get_position(entry.payload)
        following_one = entry.next
        while following_one is not None:
            position = self.producer.get_position(following_one.payload)
            if is_before(position, lowest):
                lowest = position
            elif is_before(furthest, position) or (
                position[0] is not furthest[0] and cut_before(furthest, position[0]) is not None
            ):
                furthest = position
            following_one = following_one.next
        return lowest, furthest

    def lane_tail_of(self, lane: Hashable) -> LaneTail:
        """What was broadcast in a lane since somebody fell behind there; nothing if nobody is."""
        backlogs = self.backlogs.by_lane.get(lane)
        if backlogs is None:
            self.lane_tail.pop(lane, None)
            return LaneTail(most=0)
        kept_for, lane_tail = self.lane_tail.get(lane, (None, None))
        if lane_tail is None or kept_for is not backlogs:
            # What is kept of an earlier time does not adjoin what is broadcast now.
            broadcast_to = next(iter(backlogs.values())).broadcast_to
            lane_tail = LaneTail(broadcast_to, most=self.settings.most_recent)
            self.lane_tail[lane] = backlogs, lane_tail
        return lane_tail

    def position_since_cut(self, lane: Hashable, position: Position) -> Position:
        """Where a watcher stands that has missed the message at `position`: at the cut, if the log has lost that."""
        return cut_before(position, self.lane_tail_of(lane).incarnation) or position

    def trim_lane_tail(self) -> None:
        """Forget what was broadcast in lanes in which nobody is behind any more, since watchers were deleted."""
        for lane in [lane for lane in self.lane_tail if lane not in self.backlogs.by_lane]:
            del self.lane_tail[lane]

    def store_position(self, backlog: Backlog) -> None:
        """Store the position of a watcher that is behind, and how far it is from the end, as far as that is known."""
        if backlog.is_gone or backlog.stored_lane is not None:
            return
        backlog.stored_at = self.clock.monotonic()
        newest = self.lane_tail_of(backlog.lane).newest
        if newest is not None:
            backlog.head = newest[1] + 1
        self.backlogs.move(backlog)

    def end_if_advanced(self, backlog: Backlog) -> None:
        """Forget the position of a watcher that has caught up, if the broker was advanced to it already.

        Or if it was set back and nothing was broadcast since: it has what lies before, and keys absorb a repeat.
        """
        if backlog.stored_lane is not None:
            self._end_in_queue(backlog)
            return
        if (
            not self.is_ending
            and backlog.is_caught_up
            and not backlog.is_gone
            and backlog.position == backlog.cursor
            and self._is_advanced_to(backlog)
        ):
            self._end(backlog)

    def _is_advanced_to(self, backlog: Backlog) -> bool:
        """Whether the broker was advanced to where a watcher stands, or need not be; False: it is not known."""
        end = backlog.last_end
        advanced_to = self.backlogs.advanced_to.get(backlog.lane)
        if advanced_to is not None and (advanced_to == end or is_before(end, advanced_to)):
            return True
        lane = self.lanes.get(backlog.lane)
        if lane is not None and lane.outstanding:
            return False
        newest = self.lane_tail_of(backlog.lane).newest
        if newest is None:
            return backlog.rewound_to is not None and backlog.reemit is None
        failed = self.failed_in.get(backlog.lane)
        if failed is not None and is_before(failed, end):
            # It comes again: if it had passed since, it would be known that the broker was advanced so far.
            return False
        return not is_before(following(newest), end)

    def _end_in_queue(self, backlog: Backlog) -> None:
        """Forget a lag that has caught up, if nothing that was read there is outstanding, and all of it is durable."""
        head = self.head_of(backlog.lane)
        assert backlog.stored_lane is not None
        if (
            not self.is_ending
            and not backlog.stored_lane.in_flight_keys
            and backlog.is_caught_up
            and not backlog.is_gone
            and backlog.position == backlog.cursor
            and (head is None or head.seq >= backlog.cursor[1])
        ):
            self._end(backlog)

    def _end(self, backlog: Backlog) -> None:
        self.backlogs.end(backlog)
        if not self.backlogs:
            self.newest.clear()
        if backlog.lane not in self.backlogs.by_lane:
            self.lane_tail.pop(backlog.lane, None)

    @property
    def oldest_outstanding(self) -> int:
        """The number of the oldest event of a lane that is not being advanced; that of the next event if none is."""
        heads = [lane.head.seq for lane in self.lanes if lane.head is not None]
        return min(heads, default=self.ledger.head)

    @property
    def is_acknowledged(self) -> bool:
        """Whether it is in ack mode; otherwise it is on the fast path."""
        return self.ledger.lanes is not None

    @property
    def outstanding(self) -> int:
        """How many events are not yet advanced; on the fast path, how many some subscriber has not read."""
        return self.lanes.outstanding if self.is_acknowledged else len(self.ledger.events)


def is_log(producer: type[SharedStreamProducer]) -> bool:
    """Whether messages stay when they have been read: the class overrides `read_lane`."""
    return producer.read_lane is not SharedStreamProducer.read_lane


def is_queue(producer: type[SharedStreamProducer]) -> bool:
    """Whether messages go when they have been read, and can be stored: the class overrides `dump_event` alone."""
    return producer.dump_event is not SharedStreamProducer.dump_event and not is_log(producer)
