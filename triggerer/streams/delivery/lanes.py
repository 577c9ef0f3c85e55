"""Order within a lane: which contiguous prefix of it may be advanced next. Synchronous, no I/O."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Container, Hashable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from triggerer.abc import AdvanceItem, AdvanceOutcome
from triggerer.domain.events import WatcherRef

_EMPTY_LANES: Final = 128
"""How many empty lanes a group keeps, at 100 bytes each: most are needed again at once."""


class OutcomeCounts:
    """How many subscribers answer for an event, for how many it has failed, and how many of these had not pulled it."""

    __slots__ = ("acking", "failing", "outcome", "unread")

    def __init__(self, acking: int, failing: int, unread: int) -> None:
        self.acking = acking
        self.failing = failing
        self.unread = unread
        self.outcome = AdvanceOutcome(acking, failing, 0, unread)
        """Of an event without nacks. Almost all outcomes are equal, and frozen: they share this object."""


class Rejection(NamedTuple):
    """An event that one subscriber rejected, with its watchers and the reason."""

    event: Any
    watchers: Sequence[WatcherRef]
    """Those of its watchers that were given the event."""
    reason: str | None


class Nacks:
    """Which of the subscribers that have to answer for an event have rejected or failed it."""

    __slots__ = ("failed", "is_set_aside", "refused_by", "rejected", "rejected_by", "unread")

    def __init__(self) -> None:
        self.rejected = 0
        self.failed = 0
        self.unread = 0
        """What this changes of how many had not pulled it: less one who had it open, more one who is not given it."""
        self.refused_by: set[object] | None = None
        """Those counted in `failed` because the store refused an event that they derived."""
        self.rejected_by: dict[object, Rejection | None] | None = None
        """Those who rejected it. They count in `rejected` until they fail it too."""
        self.is_set_aside = False
        """Whether it is, or is being, set aside for those."""

    def has_refused(self, member: object) -> bool:
        """Whether `member` is counted in `failed` because the store refused an event that it derived."""
        return self.refused_by is not None and member in self.refused_by

    def mark_refused(self, member: object) -> None:
        """Count `member` in `failed`, once."""
        if self.refused_by is None:
            self.refused_by = set()
        elif member in self.refused_by:
            return
        self.refused_by.add(member)
        self.failed += 1
        if self.rejected_by is not None and member in self.rejected_by:
            # Both rejected and failed: failed (contract, rule 5).
            self.rejected -= 1

    def remember_rejection(self, member: object, rejection: Rejection | None) -> None:
        """Note that `member` has rejected it: if the store refuses an event later, that replaces the rejection."""
        if self.rejected_by is None:
            self.rejected_by = {}
        self.rejected_by[member] = rejection


class Entry:
    """One outstanding event: broadcast, and not advanced.

    `unresolved` counts what it waits for: one until every subscriber has moved past it, and one for each unconfirmed
    `TriggerEvent` derived from it. The entries of a lane form a linked list, so that a lane with one event at a time
    needs no queue.
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
    """Set where the source is a queue: what somebody misses is kept when it is decided."""
    payload: Any
    lane: Lane | None
    """None once it was taken for an advance."""
    broadcast_at: float
    size_bytes: int
    """As the producer tells it; 0: unknown."""
    unresolved: int
    counts: OutcomeCounts
    """Set when everybody has moved past it."""
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
        """The nacks, created if there were none."""
        if self.nacks is None:
            self.nacks = Nacks()
        return self.nacks

    def outcome(self) -> AdvanceOutcome:
        """What `advance` is told; only once everybody has moved past it."""
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
    """Broadcast and not advanced: those from `head` to `tail`, and those in flight."""
    outstanding_bytes: int
    """Their sizes, as far as they are known."""
    in_flight: int
    """Handed to the `advance` that has not returned."""
    in_flight_bytes: int
    in_flight_to: int
    """The number after the last that was handed to an `advance`."""
    has_failed: bool
    """Whether something of what is being advanced has failed."""
    clean_to: int
    """The number after the last of it that lies before that, if anything has; 0: nothing does."""
    is_scheduled: bool
    """Queued for the next advance, or being advanced."""

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
        """Take the ready prefix, `limit` events at most. Empty if `decide` has the first one wait.

        Args:
            decides_all: Whether `decide` is asked of each event, not only of those that somebody failed or rejected.
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
            # An event derived from it may still refer to this entry, and must not keep those behind it alive.
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
"""Says what `advance` is given of an event that somebody failed or rejected. None: it waits, being unresolved again."""


def _ignore(_: Lane) -> None:
    pass


def _as_it_is(_: Entry, outcome: AdvanceOutcome) -> AdvanceOutcome | None:
    return outcome


class Lanes:
    """All lanes of a group, and a queue of those whose head is ready.

    Every method costs O(1), `take` O(number of events taken): a lane whose head is stuck is not looked at again until
    its head resolves. Of the lanes without outstanding events only some are kept.

    A lane is full when it has reached one of its two bounds, in events or in bytes. The caller of `append` enforces
    them. The message that reaches the bound in bytes may exceed it, so that one which alone is larger passes too.
    """

    def __init__(self, bound: int = sys.maxsize, bound_bytes: int = sys.maxsize) -> None:
        self.bound = bound
        """Of the outstanding events of one lane."""
        self.bound_bytes = bound_bytes
        """Of their sizes."""
        self.full: dict[Hashable, Lane] = {}
        """The lanes that have been full, until they are down to half of both bounds; then `on_low_water` is called."""
        self.newly_full: Lane | None = None
        """The lane that reached a bound last. The caller of `append` handles it, and sets this to None."""
        self.outstanding = 0
        self.outstanding_bytes = 0
        self.on_low_water: Callable[[Lane], None] = _ignore
        self.on_failed: Callable[[Lane], None] = _ignore
        """Called when an advance of something that has failed has returned."""
        self.decide: Decide = _as_it_is
        self.decided_lanes: Container[Hashable] = ()
        """Those in which `decide` is asked of each event."""
        self._lanes: dict[Hashable, Lane] = {}
        self._ready: deque[Lane] = deque()

    def __iter__(self) -> Iterator[Lane]:
        """The lanes that are known, also empty ones."""
        return iter(self._lanes.values())

    def get(self, key: Hashable) -> Lane | None:
        """The lane; None if it has no outstanding events, and perhaps never had."""
        return self._lanes.get(key)

    def is_full(self, lane: Lane) -> bool:
        """Whether nothing may be added to `lane` at present."""
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
        """Drop all events. An answer that still arrives queues nothing."""
        for lane in self._lanes.values():
            entry = lane.head
            lane.head = lane.tail = None
            while entry is not None:
                # Whoever still refers to an entry, a subscriber for example, must not keep those behind it alive.
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
            # A filter derived an event from a message after it had rejected it, and the lane was queued in between.
            # The lane is queued again when the store has answered.
            ready.popleft().is_scheduled = False
        return bool(ready)

    def batches(self, limit: int) -> Iterator[list[AdvanceItem]]:
        """One batch after the other while a lane is ready. Asking for the next one finishes the one before."""
        ready, finish = self._ready, self.finish
        decide, decided_lanes = self.decide, self.decided_lanes
        while ready:
            lane = ready.popleft()
            head = lane.head
            if head is None or head.unresolved:
                lane.is_scheduled = False
            else:
                batch = lane.take(limit, decide, decides_all=lane.key in decided_lanes)
                if batch:
                    yield batch
                finish(lane)

    def take(self, limit: int = sys.maxsize) -> tuple[Lane, list[AdvanceItem]]:
        """Take the ready prefix, `limit` events at most, of the lane that has waited longest.

        It may be empty, see `decide`. `finish` it before it is queued again.

        Raises:
            IndexError: No lane is ready; see `has_ready`.
        """
        lane = self._ready.popleft()
        decides_all = lane.key in self.decided_lanes
        return lane, lane.take(limit, self.decide, decides_all=decides_all)

    def take_together(
        self, limit: int, limit_of_lane: int
    ) -> tuple[list[Lane], list[list[AdvanceItem]]]:
        """Take the ready prefixes of those lanes that have waited longest, until they hold `limit` events or more.

        `finish` each before it is queued again.
        """
        lanes: list[Lane] = []
        batches: list[list[AdvanceItem]] = []
        ready, decide, decided_lanes = self._ready, self.decide, self.decided_lanes
        count = 0
        while ready and count < limit:
            lane = ready.popleft()
            head = lane.head
            if head is None or head.unresolved:
                # See `has_ready`.
                lane.is_scheduled = False
                continue
            if not (head.next or head.nacks or head.counts.failing or lane.key in decided_lanes):
                # As `Lane.take` does it, without a call: where each message is a lane this runs for each.
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
        """The advance of what was taken from `lane` has returned."""
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
