"""The state that the parts of a group share."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple, Protocol

from triggerer.abc import AdvanceItem, SharedStreamProducer, SharedStreamSelector
from triggerer.domain.events import EventSink, EventSource, WatcherRef
from triggerer.domain.watchers.lane_positions import Position, cut_before, following, is_before
from triggerer.domain.watchers.parked import ParkedChange, ParkedStore
from triggerer.errors import LeaseLost
from triggerer.processes.own_lease import OwnLease
from triggerer.streams.catchup.backlogs.backlog import Backlog
from triggerer.streams.catchup.backlogs.backlogs import Backlogs
from triggerer.streams.catchup.backlogs.truncated_logs import mark_cut
from triggerer.streams.catchup.reading.lane_ends import LaneEnds
from triggerer.streams.catchup.reading.lane_tail import LaneTail, LogMessage
from triggerer.streams.clock import Clock
from triggerer.streams.delivery.absences import Absences
from triggerer.streams.delivery.lane import Entry
from triggerer.streams.delivery.lanes import Lanes
from triggerer.streams.delivery.ledger import Ledger
from triggerer.streams.delivery.progress import ProgressSignal
from triggerer.streams.delivery.selection import Selection
from triggerer.streams.settings import RuntimeSettings

_MOST_NEWEST: Final = 20
_MOST_BYTES_OF_NEWEST: Final = 256 * 1024
"""256 KiB: a larger message is not stored in `GroupState.newest`."""


class Stages(EventSink, Protocol):
    """The part of `triggerer.streams.delivery.staged_events.Staging` that the group uses."""

    is_ahead: bool

    def flush(self) -> None: ...
    def mark_advanced(self) -> None: ...
    def end(self) -> None: ...


class Reader(Protocol):
    """A subscriber that awaits the next event."""

    def wake(self) -> None: ...


class Newest(NamedTuple):
    """A queue's message that was broadcast lately."""

    lane: Hashable
    event: Any
    payload: Any
    seq: int


@dataclass(slots=True, eq=False)
class GroupState:
    """The ledger, lanes, producer and flags of one group. Each part of the group receives this object.

    `Group` makes the parts, and passes to each part the other parts that it needs.
    """

    key: Hashable
    name: str
    """The readable name of the key."""
    settings: RuntimeSettings
    clock: Clock
    lease: OwnLease
    lanes: Lanes
    ledger: Ledger
    backlogs: Backlogs
    """The backlogs of the stream. They outlive the group."""
    source_of: Callable[[WatcherRef], EventSource | None]
    """Returns the event source of the member that serves a watcher. None: no member serves the watcher.

    A member is found even if its trigger could not be made.
    """
    name_of: Callable[[WatcherRef], str]
    """Returns a watcher's readable name, such as `asset/name`, for log lines and reasons."""
    now: Callable[[], datetime]
    """The wall clock, for times that are shown or stored."""
    parked: ParkedStore | None = None
    """The store for parked messages and for a queue's backlogs. It outlives the group."""
    dead_letters_at_bound: bool = False
    """True: the producer dead-letters messages that the store refuses because of a limit. False: the stream waits."""
    blocked_by: dict[WatcherRef, Exception] = field(default_factory=dict)
    """The watchers whose messages the store refuses because of a limit. The stream waits meanwhile."""
    standing: dict[Hashable, str] = field(default_factory=dict)
    """The lanes that the producer reports as standing, each with the reason (`SharedStreamProducer.use_standing`)."""
    failing: dict[Hashable, Position] = field(default_factory=dict)
    """By lane, the lowest position that has failed, until the broker has learned of the failure.

    The broker redelivers all later messages of the lane, including messages that are broadcast meanwhile.
    """
    redelivered_before: dict[Hashable, int] = field(default_factory=dict)
    """By lane, an event number. The broker redelivers outstanding events before it, because a message failed."""
    failed_in: dict[Hashable, Position] = field(default_factory=dict)
    """By lane, the position of the last failure that the broker has learned of."""
    is_poll_waiting: bool = False
    """True if the poll has pulled a message that it may not broadcast yet."""
    on_blocked: Callable[[], None] = lambda: None
    """Called when `blocked_by` has changed."""
    selectors: dict[int, SharedStreamSelector | None] = field(default_factory=dict)
    """By watcher id, the selector of the watcher's newest trigger."""
    absences: Absences = field(default_factory=Absences)
    lane_tail: dict[Hashable, tuple[object, LaneTail]] = field(default_factory=dict)
    """By lane, a pair: the lane's dictionary in `Backlogs.by_lane` when the tail began, and the tail.

    `Backlogs` drops the dictionary when the lane has no backlog. So if the lane has another dictionary now, messages
    were broadcast without being added to the tail, and the tail is outdated.
    """
    newest: deque[Newest] = field(default_factory=lambda: deque(maxlen=_MOST_NEWEST))
    """The last broadcasts of a queue that has backlogs.

    A watcher that catches up may try these messages as probes, to find out whether it fails every message or only one.
    """
    lane_ends: LaneEnds = field(default_factory=LaneEnds)
    progress: ProgressSignal = field(default_factory=ProgressSignal)
    selection: Selection = field(default_factory=Selection)
    readers: dict[Reader, None] = field(default_factory=dict)
    """The readers that await a broadcast. The next broadcast wakes them and empties the dictionary."""
    producer: SharedStreamProducer | None = None
    """The producer, in ack mode, once the stream is open."""
    staging: Stages | None = None
    """Stores the events together with the producer's state. None: the events are submitted at once, without a state."""
    rejected: int = 0
    """The number of messages that a watcher rejected and that no watcher failed."""
    failed: int = 0
    """The number of messages that the broker must deliver again."""
    is_stopping: bool = False
    """True while no message is pulled, for instance because the service stops or no member is left."""
    is_ending: bool = False
    """True if no subscriber can join. Set where a failure is first seen, before any await."""
    is_closed: bool = False
    """True if no event may be broadcast or advanced.

    Cancelling the tasks is not enough, because a task that was already woken still executes one step.
    """

    @property
    def may_act(self) -> bool:
        """Return whether the group may broadcast and advance: it is not closed, and its lease is valid.

        Check this after each wait, because the process or the machine may have been suspended during the wait.
        """
        return not (self.is_closed or self.lease.is_over)

    def submit_parked(self, change: ParkedChange) -> None:
        """Store a change of parked messages. A closed group stores nothing, because its lease may be released."""
        assert self.parked is not None
        if self.is_closed:
            change.on_done(LeaseLost("the stream was closed"))
        else:
            self.parked.submit_nowait(change)

    @property
    def may_fall_behind(self) -> bool:
        """Whether a watcher that fails a message falls behind alone."""
        return self.backlogs.may_grow and (self.reads_log or self.stores_messages)

    @property
    def reads_log(self) -> bool:
        """Whether the upstream is a log, whose messages can be read again."""
        return self.producer is not None and is_log(type(self.producer))

    def is_redelivered(self, entry: Entry, lane: Hashable) -> bool:
        """Return whether a queue's broker redelivers this message, because an earlier message of its lane failed."""
        return lane in self.failing or entry.seq < self.redelivered_before.get(lane, 0)

    def is_redelivered_in_log(self, lane: Hashable, seq: int, position: Position) -> bool:
        """Return whether the broker redelivers this message of a log, because an earlier message of its lane failed."""
        return lane in self.failing or self._was_pulled_before_redelivery(lane, seq, position)

    def _was_pulled_before_redelivery(self, lane: Hashable, seq: int, position: Position) -> bool:
        """Return whether a log's message was pulled before the broker learned of a failure in the message's lane."""
        before = self.redelivered_before.get(lane)
        if before is None:
            return False
        # The poll may have pulled one message before the failure, and may broadcast it now.
        return seq < before or (seq == before and is_before(self.failed_in[lane], position))

    @property
    def awaits_redelivery(self) -> bool:
        """Whether the poll may broadcast a message that it pulled before a failure and that the broker redelivers."""
        next_seq = self.ledger.next_seq
        return bool(self.failing) or any(
            until > next_seq for until in self.redelivered_before.values()
        )

    def awaits_redelivery_in(self, lane: Hashable) -> bool:
        """Return whether the poll may broadcast a message of this lane that the broker redelivers."""
        return lane in self.failing or self.redelivered_before.get(lane, 0) > self.ledger.next_seq

    @property
    def stores_messages(self) -> bool:
        """Whether the upstream is a queue whose missed messages are stored."""
        return (
            self.parked is not None and self.producer is not None and is_queue(type(self.producer))
        )

    def position_of(self, entry: Entry) -> Position:
        """Return a message's position in its lane. In a queue, this is the message's number in the group."""
        assert self.producer is not None
        if self.reads_log:
            return self.producer.get_position(entry.payload)
        return [None, entry.seq]

    def append_to_lane_tail(self, event: Any, payload: Any, size_bytes: int) -> None:
        """Add the last broadcast to the tail of its lane, if the lane has backlogs."""
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
            self.lane_tail_of(lane).append(LogMessage(position, event, payload), size_bytes)

    def record_newest(self, entry: Entry, size_bytes: int) -> None:
        """Remember the last broadcast of a queue that has backlogs, unless it is large."""
        if size_bytes <= _MOST_BYTES_OF_NEWEST:
            assert entry.lane is not None
            self.newest.append(Newest(entry.lane.key, entry.event, entry.payload, entry.seq))

    def mark_advanced(self, batch: Sequence[AdvanceItem]) -> None:
        """After an advance in a lane, drop the lane's caught-up backlogs whose end the broker has reached."""
        assert self.producer is not None
        key = self.producer.get_advance_lane(batch[-1].broker_payload)
        if self.stores_messages:
            for backlog in list(self.backlogs.live.get(key, ())):
                self._end_in_queue(backlog)
            return
        if key not in self.backlogs.by_lane:
            return
        # The broker advances up to the first failure.
        count = next((at for at, item in enumerate(batch) if item.outcome.failed), len(batch))
        if not count:
            return
        position = self.producer.get_position(batch[count - 1].broker_payload)
        lane = self.lanes.get(key)
        if lane is not None:
            done_to = lane.in_flight_to if count == len(batch) else lane.clean_to
            if self._was_pulled_before_redelivery(key, done_to - 1, position):
                # The broker learned of an earlier failure, and does not advance this far.
                return
        if cut_before(position, self.lane_tail_of(key).incarnation) is not None:
            # A cut has removed the message from the log, so the broker's position is before the message.
            return
        reached = following(position)
        self.backlogs.mark_advanced(key, reached)
        for backlog in list(self.backlogs.live.get(key, ())):
            if backlog.position == backlog.cursor and not is_before(
                reached, backlog.position_before_gap
            ):
                self._end(backlog)

    def lowest_outstanding(self, lane: Hashable) -> Position | None:
        """Return the lowest position among a lane's messages that are not being advanced; None if no message is left.

        The lane's first message may have a higher position, because a redelivered message may follow it.
        """
        entry, place = self.head_of(lane), None
        while entry is not None and self.producer is not None:
            position = self.producer.get_position(entry.payload)
            if place is None or is_before(position, place):
                place = position
            entry = entry.next
        return place

    def head_of(self, lane: Hashable) -> Entry | None:
        """Return the lane's first entry that is not being advanced."""
        found = self.lanes.get(lane)
        return None if found is None else found.head

    def last_broadcast_from(self, entry: Entry) -> Position:
        """Return the highest position of this message and the later outstanding messages of its lane."""
        return self.span_from(entry)[1]

    def span_from(self, entry: Entry) -> tuple[Position, Position]:
        """Return the lowest and the highest position of this message and the later outstanding messages of its lane.

        A redelivered message may come after messages with higher positions.
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
        """Return a lane's tail: the broadcasts since its first backlog began. Without a backlog the tail is empty."""
        backlogs = self.backlogs.by_lane.get(lane)
        if backlogs is None:
            self.lane_tail.pop(lane, None)
            return LaneTail(most=0)
        kept_for, lane_tail = self.lane_tail.get(lane, (None, None))
        if lane_tail is None or kept_for is not backlogs:
            # Begin a new tail: a tail of earlier backlogs lacks the messages that were broadcast while the lane had no
            # backlog.
            broadcast_to = next(iter(backlogs.values())).broadcast_to
            lane_tail = LaneTail(broadcast_to, most=self.settings.most_recent)
            self.lane_tail[lane] = backlogs, lane_tail
        return lane_tail

    def position_since_cut(self, lane: Hashable, position: Position) -> Position:
        """Return where a watcher continues that missed the message at `position`: a cut before it, or `position`."""
        return cut_before(position, self.lane_tail_of(lane).incarnation) or position

    def trim_lane_tail(self) -> None:
        """Forget the tails of lanes that have no backlog, because watchers were deleted."""
        for lane in [lane for lane in self.lane_tail if lane not in self.backlogs.by_lane]:
            del self.lane_tail[lane]

    def store_position(self, backlog: Backlog) -> None:
        """Store the position of a backlog. Also store the end of its lane, if known, so that users see the distance."""
        if backlog.is_gone or backlog.stored_lane is not None:
            return
        backlog.stored_at = self.clock.monotonic()
        newest = self.lane_tail_of(backlog.lane).newest
        if newest is not None:
            backlog.log_end = newest[1] + 1
        self.backlogs.writes.move(backlog)

    def end_if_advanced(self, backlog: Backlog) -> None:
        """Drop a backlog that has caught up, if the broker has advanced to the backlog's end.

        After a replay without re-emission, the backlog is dropped even without this advance, if the
        lane has had no broadcasts. If the broker then redelivers a replayed message, the
        idempotency key prevents a second event.
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
        """Return whether the broker has advanced to the backlog's end, or need not advance.

        Return False if that is unknown.
        """
        end = backlog.position_before_gap
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
            # A message before the end has failed, and the broker has not advanced to the end since.
            return False
        return not is_before(following(newest), end)

    def _end_in_queue(self, backlog: Backlog) -> None:
        """Drop a caught-up backlog if its events are durable and no message that its watcher read is outstanding."""
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
        """The number of the oldest event that is not being advanced; if there is none, the number of the next event."""
        heads = [lane.head.seq for lane in self.lanes if lane.head is not None]
        return min(heads, default=self.ledger.next_seq)

    @property
    def is_acknowledged(self) -> bool:
        """Whether the group is in ack mode; otherwise it is on the fast path."""
        return self.ledger.lanes is not None

    @property
    def outstanding(self) -> int:
        """The number of events that are not advanced (on the fast path: not read by every subscriber)."""
        return self.lanes.outstanding if self.is_acknowledged else len(self.ledger.events)


def is_log(producer: type[SharedStreamProducer]) -> bool:
    """Return whether the class overrides `read_lane`: its messages stay after they were read."""
    return producer.read_lane is not SharedStreamProducer.read_lane


def is_queue(producer: type[SharedStreamProducer]) -> bool:
    """Return whether the class overrides `dump_event` but not `read_lane`: its messages can be stored, not reread."""
    return producer.dump_event is not SharedStreamProducer.dump_event and not is_log(producer)
