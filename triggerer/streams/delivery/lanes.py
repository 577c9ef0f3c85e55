"""Order within a lane: which of the events at its head may be advanced next. Synchronous, no I/O."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Container, Hashable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from triggerer.abc import AdvanceItem, AdvanceOutcome
from triggerer.domain.events import WatcherRef

_EMPTY_LANES: Final = 128
"""The most empty lanes that a group remembers, at 100 bytes each. Most of them are needed again soon."""


class OutcomeCounts:
    """Counts of the subscribers that ack an event, that fail it, and that fail it without having pulled it."""

    __slots__ = ("acking", "failing", "outcome", "unread")

    def __init__(self, acking: int, failing: int, unread: int) -> None:
        self.acking = acking
        self.failing = failing
        self.unread = unread
        self.outcome = AdvanceOutcome(acking, failing, 0, unread)
        """The outcome of an event without nacks. Outcomes are frozen and mostly equal, so events share this object."""


class Rejection(NamedTuple):
    """An event that one subscriber rejected, with its watchers and the reason."""

    event: Any
    watchers: Sequence[WatcherRef]
    """The watchers of the subscriber that received the event."""
    reason: str | None


class Nacks:
    """The rejections and failures of one event, in addition to the counts that many events share (`OutcomeCounts`)."""

    __slots__ = ("failed", "is_set_aside", "refused_by", "rejected", "rejected_by", "unread")

    def __init__(self) -> None:
        self.rejected = 0
        self.failed = 0
        self.unread = 0
        """A number to add to `OutcomeCounts.unread`: minus one for a subscriber that failed with the event open, plus
        one for a subscriber that did not receive the event.
        """
        self.refused_by: set[object] | None = None
        """The subscribers counted in `failed` because the store refused an event that they derived."""
        self.rejected_by: dict[object, Rejection | None] | None = None
        """The subscribers that rejected the event. They count in `rejected` unless they fail the event later."""
        self.is_set_aside = False
        """Whether the message is parked, or being parked, for the subscribers that rejected it."""

    def has_refused(self, member: object) -> bool:
        """Return whether `member` counts in `failed` because the store refused an event that it derived."""
        return self.refused_by is not None and member in self.refused_by

    def mark_refused(self, member: object) -> None:
        """Count `member` in `failed`, at most once."""
        if self.refused_by is None:
            self.refused_by = set()
        elif member in self.refused_by:
            return
        self.refused_by.add(member)
        self.failed += 1
        if self.rejected_by is not None and member in self.rejected_by:
            # An event that is both rejected and failed counts as failed (contract, rule 5).
            self.rejected -= 1

    def remember_rejection(self, member: object, rejection: Rejection | None) -> None:
        """Record that `member` rejected the event.

        If the store later refuses an event that the member derived from it, the rejection becomes a failure.
        """
        if self.rejected_by is None:
            self.rejected_by = {}
        self.rejected_by[member] = rejection


class Entry:
    """One outstanding event: broadcast, and not advanced.

    `unresolved` counts what the event waits for: one until every subscriber has moved past it, and one for each derived
    event that the store has not answered. The entries of a lane form a linked list, so that a lane with one event at a
    time needs no queue.
    """

    __slots__ = (
        "broadcast_at",
        "counts",
        "event",
        "lane",
        "nacks",
        "next",
        "payload",
        "seq",
        "size_bytes",
        "unresolved",
    )

    seq: int
    event: Any
    """The event, set for queues only: a watcher that misses the event needs a stored copy."""
    payload: Any
    lane: Lane | None
    """None once the event is being advanced."""
    broadcast_at: float
    size_bytes: int
    """The size that the producer reports; 0: unknown."""
    unresolved: int
    counts: OutcomeCounts
    """Set when every subscriber has moved past the event."""
    nacks: Nacks | None
    next: Entry | None

    def __init__(self, seq: int, payload: Any, broadcast_at: float, size_bytes: int) -> None:
        self.seq = seq
        self.payload = payload
        self.broadcast_at = broadcast_at
        self.size_bytes = size_bytes
        self.unresolved = 1
        self.nacks = self.next = None

    @property
    def is_in_flight(self) -> bool:
        return self.lane is None

    def make_nacks(self) -> Nacks:
        """Return the nacks, created if there were none."""
        if self.nacks is None:
            self.nacks = Nacks()
        return self.nacks

    def outcome(self) -> AdvanceOutcome:
        """Return the outcome for `advance`. Call it only once every subscriber has moved past the event."""
        counts, nacks = self.counts, self.nacks
        if nacks is None:
            return counts.outcome
        failed, rejected = nacks.failed, nacks.rejected
        return AdvanceOutcome(
            counts.acking - rejected - failed,
            counts.failing + failed,
            rejected,
            counts.unread + nacks.unread,
        )


class Lane:
    """The outstanding events of one lane, in event order."""

    __slots__ = (
        "clean_to",
        "has_failed",
        "head",
        "in_flight",
        "in_flight_bytes",
        "in_flight_to",
        "is_scheduled",
        "key",
        "outstanding",
        "outstanding_bytes",
        "tail",
    )

    key: Hashable
    head: Entry | None
    tail: Entry | None
    outstanding: int
    """The number of events from `head` to `tail`, plus the events in flight."""
    outstanding_bytes: int
    """The sizes of the outstanding events, as far as they are known."""
    in_flight: int
    """The number of events in the `advance` that has not returned."""
    in_flight_bytes: int
    in_flight_to: int
    """The number after the last event that was handed to an `advance`."""
    has_failed: bool
    """Whether an event of the current `advance` has failed."""
    clean_to: int
    """Events of the current `advance` with numbers below this come before its first failure. 0: there are none."""
    is_scheduled: bool
    """Whether the lane is queued for the next advance, or being advanced."""

    def __init__(self, key: Hashable, first: Entry) -> None:
        self.key = key
        self.head = self.tail = first
        self.outstanding = 1
        self.outstanding_bytes = self.in_flight = self.in_flight_bytes = 0
        self.in_flight_to = self.clean_to = 0
        self.has_failed = self.is_scheduled = False

    @property
    def is_ready(self) -> bool:
        return self.head is not None and not self.head.unresolved

    def take(self, limit: int, decide: Decide, *, decides_all: bool = False) -> list[AdvanceItem]:
        """Take the ready events at the head of the lane, up to `limit`. Empty if `decide` lets the first event wait.

        Args:
            decides_all: True: call `decide` for each event, not only for failed or rejected ones.
        """
        batch: list[AdvanceItem] = []
        size_bytes = 0
        entry, last = self.head, None
        while entry is not None and not entry.unresolved:
            outcome = entry.counts.outcome if entry.nacks is None else entry.outcome()
            if outcome.failed or outcome.rejected or decides_all:
                decided = decide(entry, outcome)
                if decided is None:
                    break
                outcome = decided
                if outcome.failed and not self.has_failed:
                    self.has_failed = True
                    self.clean_to = 0 if last is None else last.seq + 1
            batch.append(AdvanceItem(entry.payload, outcome))
            size_bytes += entry.size_bytes
            # A derived event may still refer to this entry, and must not keep the later entries alive.
            entry.lane = None
            last, entry = entry, entry.next
            last.next = None
            if len(batch) == limit:
                break
        if last is not None:
            self.in_flight_to = last.seq + 1
        self.head = entry
        if entry is None:
            self.tail = None
        self.in_flight = len(batch)
        self.in_flight_bytes = size_bytes
        return batch


Decide = Callable[[Entry, AdvanceOutcome], AdvanceOutcome | None]
"""Decides about an event at its lane's head that a subscriber failed or rejected. Returns the outcome for `advance`.

None: the event waits. It is unresolved again, and its lane is queued once it is resolved.
"""


def _ignore(_: Lane) -> None:
    pass


def _as_it_is(_: Entry, outcome: AdvanceOutcome) -> AdvanceOutcome | None:
    return outcome


class Lanes:
    """The lanes of a group, and a queue of lanes whose head is ready.

    Every method costs O(1), `take` O(number of events taken): a lane with a stuck head is not looked at until the head
    resolves. Only some of the empty lanes are remembered.

    A lane is full when it has reached its bound in events or in bytes. The caller of `append` enforces the bounds. The
    message that reaches the bound in bytes may exceed it, so that a larger message passes too.
    """

    def __init__(self, bound: int = sys.maxsize, bound_bytes: int = sys.maxsize) -> None:
        self.bound = bound
        """The bound of one lane's outstanding events."""
        self.bound_bytes = bound_bytes
        """The bound of the sum of these events' sizes, in bytes."""
        self.full: dict[Hashable, Lane] = {}
        """The lanes that have been full and are still above half of a bound.

        `on_low_water` is called when a lane leaves.
        """
        self.newly_full: Lane | None = None
        """The lane that has just reached a bound. The caller of `append` handles it, and sets this to None."""
        self.outstanding = 0
        self.outstanding_bytes = 0
        self.oldest_at = 0.0
        """The broadcast time of the first event in the batch that was taken last, by the monotonic clock."""
        self.on_low_water: Callable[[Lane], None] = _ignore
        self.on_failed: Callable[[Lane], None] = _ignore
        """Called when an advance with a failed event has returned."""
        self.decide: Decide = _as_it_is
        self.decided_lanes: Container[Hashable] = ()
        """`decide` is called for every event of these lanes, and for failed or rejected events of all lanes."""
        self._lanes: dict[Hashable, Lane] = {}
        self._ready: deque[Lane] = deque()

    def __iter__(self) -> Iterator[Lane]:
        """Yield the known lanes, including empty ones."""
        return iter(self._lanes.values())

    def get(self, key: Hashable) -> Lane | None:
        """Return the lane; None if it has no outstanding events, and perhaps never had."""
        return self._lanes.get(key)

    def is_full(self, lane: Lane) -> bool:
        """Return whether nothing may be added to the lane now."""
        return lane.outstanding >= self.bound or lane.outstanding_bytes >= self.bound_bytes

    def append(
        self, key: Hashable, seq: int, payload: Any, now: float, size_bytes: int = 0
    ) -> Entry:
        """Add the next event to its lane."""
        entry = Entry(seq, payload, now, size_bytes)
        self.outstanding += 1
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(key, entry)
            outstanding = 1
        else:
            tail = lane.tail
            if tail is None:
                lane.head = entry
            else:
                tail.next = entry
            lane.tail = entry
            outstanding = lane.outstanding = lane.outstanding + 1
        entry.lane = lane
        if size_bytes:
            before = lane.outstanding_bytes
            lane.outstanding_bytes = before + size_bytes
            self.outstanding_bytes += size_bytes
            if before < self.bound_bytes <= before + size_bytes:
                self.full[key] = self.newly_full = lane
        if outstanding == self.bound:
            self.full[key] = self.newly_full = lane
        return entry

    def clear(self) -> None:
        """Drop all events. If the store answers for one of them later, no lane is queued."""
        for lane in self._lanes.values():
            entry = lane.head
            lane.head = lane.tail = None
            while entry is not None:
                # A subscriber may still refer to an entry, and must not keep the later entries alive.
                entry.lane = None
                following = entry.next
                entry.next = None
                entry = following
        self._lanes.clear()
        self._ready.clear()
        self.full.clear()
        self.newly_full = None
        self.outstanding = self.outstanding_bytes = 0

    def queue(self, lane: Lane) -> None:
        """Queue a lane for its next advance, once: its head has become ready."""
        if not lane.is_scheduled:
            lane.is_scheduled = True
            self._ready.append(lane)

    @property
    def has_ready(self) -> bool:
        ready = self._ready
        while ready and not ready[0].is_ready:
            # The head was resolved when the lane was queued, but waits again: its filter rejected the message and then
            # derived one more event from it. The lane is queued again when the store has answered.
            ready.popleft().is_scheduled = False
        return bool(ready)

    def batches(self, limit: int) -> Iterator[list[AdvanceItem]]:
        """Yield the batches of ready lanes. When the caller requests the next batch, the former counts as advanced."""
        ready, finish = self._ready, self.finish
        decide, decided_lanes = self.decide, self.decided_lanes
        while ready:
            lane = ready.popleft()
            head = lane.head
            if head is None or head.unresolved:
                lane.is_scheduled = False
            else:
                self.oldest_at = head.broadcast_at
                batch = lane.take(limit, decide, decides_all=lane.key in decided_lanes)
                if batch:
                    yield batch
                finish(lane)

    def take(self, limit: int = sys.maxsize) -> tuple[Lane, list[AdvanceItem]]:
        """Take the ready events, up to `limit`, of the lane that has waited longest.

        The list is empty if `decide` lets the first event wait. Call `finish` before the lane is queued again.

        Raises:
            IndexError: No lane is ready; see `has_ready`.
        """
        lane = self._ready.popleft()
        if lane.head is not None:
            self.oldest_at = lane.head.broadcast_at
        decides_all = lane.key in self.decided_lanes
        return lane, lane.take(limit, self.decide, decides_all=decides_all)

    def take_together(
        self, limit: int, limit_of_lane: int
    ) -> tuple[list[Lane], list[list[AdvanceItem]]]:
        """Take the ready events of the lanes that have waited longest, until they are `limit` events or more.

        Call `finish` for each lane before it is queued again.
        """
        lanes: list[Lane] = []
        batches: list[list[AdvanceItem]] = []
        ready, decide, decided_lanes = self._ready, self.decide, self.decided_lanes
        count = 0
        while ready and count < limit:
            lane = ready.popleft()
            head = lane.head
            if head is None or head.unresolved:
                # The head waits again, see `has_ready`.
                lane.is_scheduled = False
                continue
            if not count:
                # The lane that has waited longest.
                self.oldest_at = head.broadcast_at
            if not (head.next or head.nacks or head.counts.failing or lane.key in decided_lanes):
                # This does the same as `Lane.take`, without a call: it runs for each message if each message is its own
                # lane.
                head.lane = lane.head = lane.tail = None
                lane.in_flight, lane.in_flight_bytes, lane.in_flight_to = (
                    1,
                    head.size_bytes,
                    head.seq + 1,
                )
                batch = [AdvanceItem(head.payload, head.counts.outcome)]
            else:
                batch = lane.take(limit_of_lane, decide, decides_all=lane.key in decided_lanes)
            if batch:
                lanes.append(lane)
                batches.append(batch)
                count += len(batch)
            else:
                self.finish(lane)
        return lanes, batches

    def finish(self, lane: Lane) -> None:
        """Count the advance of the lane's batch as returned."""
        in_flight, in_flight_bytes = lane.in_flight, lane.in_flight_bytes
        lane.outstanding -= in_flight
        self.outstanding -= in_flight
        if in_flight_bytes:
            lane.outstanding_bytes -= in_flight_bytes
            self.outstanding_bytes -= in_flight_bytes
        if (
            self.full
            and lane.outstanding <= self.bound // 2
            and lane.outstanding_bytes <= self.bound_bytes // 2
            and lane.key in self.full
        ):
            del self.full[lane.key]
            self.on_low_water(lane)
        if lane.has_failed:
            lane.has_failed = False
            self.on_failed(lane)
        head = lane.head
        if head is not None and not head.unresolved:
            self._ready.append(lane)
            return
        lane.is_scheduled = False
        if head is None and len(self._lanes) > _EMPTY_LANES:
            del self._lanes[lane.key]
