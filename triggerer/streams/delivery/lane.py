"""One lane (a partition or a FIFO group): its outstanding events in order, and what to advance next."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

from triggerer.abc import AdvanceItem, AdvanceOutcome
from triggerer.domain.events import WatcherRef


class OutcomeCounts:
    """How many subscribers ack an event, how many fail it, and how many fail it without having pulled it."""

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
    """The rejections and failures of one event, in addition to the shared counts (`OutcomeCounts`)."""

    __slots__ = ("failed", "is_set_aside", "refused_by", "rejected", "rejected_by", "unread")

    def __init__(self) -> None:
        self.rejected = 0
        self.failed = 0
        self.unread = 0
        """A correction to `OutcomeCounts.unread`, the number of subscribers that failed the event without pulling it.

        - Minus one for each subscriber that failed with this event open. `OutcomeCounts` counts the subscriber,
          although it pulled the event.
        - Plus one for each subscriber that did not receive the event (`Ledger.miss`). `OutcomeCounts` does not count
          the subscriber.
        """
        self.refused_by: set[object] | None = None
        """The subscribers that `failed` counts, each once.

        A subscriber is counted for one of four reasons:

        - The store refused an event that the subscriber derived.
        - The subscriber rejected the event, and the store refused to park it.
        - The subscriber rejected the event, and then failed.
        - The subscriber did not receive the event (`Ledger.miss`).
        """
        self.rejected_by: dict[object, Rejection | None] | None = None
        """The subscribers that rejected the event. They count in `rejected` unless they fail the event later."""
        self.is_set_aside = False
        """True once the message is being parked for the subscribers that rejected it, or is parked.

        Also True if `dump_event` returned None, because the message then need not be parked.
        """

    def has_refused(self, member: object) -> bool:
        """Return whether `member` counts in `failed`; see `refused_by`."""
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

        The rejection becomes a failure if the store later refuses a trigger event that `member` derived from the event.
        """
        if self.rejected_by is None:
            self.rejected_by = {}
        self.rejected_by[member] = rejection


class Entry:
    """One outstanding event: broadcast, and not advanced.

    `unresolved` is the number of answers that the event waits for:

    - one until every subscriber has passed the event,
    - one for each derived event, until the store has answered,
    - one for each write for a watcher that rejected or missed the event, until the store has answered.

    The entries of a lane form a linked list, so that a lane with one event at a time needs no queue.
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
    """The event's lane. None: the event is being advanced."""
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
    """The number of events in the batch that was last taken for an `advance`."""
    in_flight_bytes: int
    in_flight_to: int
    """The number after the last event that was taken for an `advance`."""
    has_failed: bool
    """Whether an event of the current `advance` has failed."""
    clean_to: int
    """Valid if `has_failed`. The events of the current batch before this number precede its first failed event.

    0: the batch begins with a failed event.
    """
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
        """Take up to `limit` ready events from the head of the lane.

        The first event for which `decide` returns None must wait, and so must all events after it. So the result may be
        empty.

        Args:
            decides_all: True: call `decide` for each event. False: call it only for failed or rejected events.
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
"""Decides which outcome `advance` receives for an event at its lane's head.

The function is called if a subscriber failed or rejected the event, and for every event of a lane
in `Lanes.decided_lanes`.

If the function returns None, the event waits for the store, and the function has increased
`Entry.unresolved`. Once the store has answered, the lane is queued again, to advance the event.
"""
