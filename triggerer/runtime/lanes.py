"""Order within a lane: which contiguous prefix of it may be advanced next. Synchronous, no I/O."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

from triggerer.abc import AdvanceItem, AdvanceOutcome


class Standing(NamedTuple):
    """How many subscribers answer for an event, and for how many it counts as failed from the start."""

    acking: int
    failing: int


class Entry:
    """One outstanding event: broadcast, and not advanced.

    `unresolved` counts what it waits for: one until every subscriber has moved past it, and one for each unconfirmed
    `TriggerEvent` that was derived from it. `rejected` and `failed` are the exceptions among the acking subscribers.
    """

    __slots__ = (
        "broadcast_at",
        "failed",
        "is_taken",
        "lane",
        "payload",
        "refused_by",
        "rejected",
        "rejected_by",
        "seq",
        "standing",
        "unresolved",
    )

    def __init__(self, seq: int, payload: Any, lane: Lane, broadcast_at: float) -> None:
        self.seq = seq
        self.payload = payload
        self.lane = lane
        self.broadcast_at = broadcast_at
        self.unresolved = 1
        self.rejected = 0
        self.failed = 0
        self.standing: Standing | None = None
        self.is_taken = False
        self.refused_by: set[object] | None = None
        """Who counts among `failed` since the store refused an event that they derived from it."""
        self.rejected_by: set[object] | None = None
        """Who rejected it although events of theirs, derived from it, were on their way into the store."""

    def outcome(self) -> AdvanceOutcome:
        """What `advance` is told; only once everybody has moved past it."""
        assert self.standing is not None
        acking, failing = self.standing
        return AdvanceOutcome(
            acking - self.rejected - self.failed, failing + self.failed, self.rejected
        )


class Lane:
    """The outstanding events of one lane, in event order."""

    __slots__ = ("entries", "is_advancing", "is_queued", "key")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.entries: deque[Entry] = deque()
        self.is_advancing = False
        self.is_queued = False

    @property
    def is_ready(self) -> bool:
        return bool(self.entries) and not self.entries[0].unresolved


class Lanes:
    """All lanes of a group, and a queue of those whose head is ready.

    Every method costs O(1), `take` O(what it takes): a lane whose head is stuck is never looked at again until
    its head resolves. A lane without outstanding events is forgotten.
    """

    def __init__(self) -> None:
        self._lanes: dict[Hashable, Lane] = {}
        self._ready: deque[Lane] = deque()
        self._clean: dict[Standing, AdvanceOutcome] = {}
        self.outstanding = 0

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._lanes.values())

    def append(self, key: Hashable, seq: int, payload: Any, now: float) -> Entry:
        """Add the next event to its lane."""
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(key)
        entry = Entry(seq, payload, lane, now)
        lane.entries.append(entry)
        self.outstanding += 1
        return entry

    def note_resolved(self, entry: Entry) -> None:
        """Queue the entry's lane if the entry is its head; call once `entry.unresolved` has become zero."""
        lane = entry.lane
        if lane.entries and lane.entries[0] is entry:
            self._queue(lane)

    def _queue(self, lane: Lane) -> None:
        if not lane.is_queued and not lane.is_advancing:
            lane.is_queued = True
            self._ready.append(lane)

    @property
    def has_ready(self) -> bool:
        ready = self._ready
        while ready and not ready[0].is_ready:
            # A filter derived something from an event that it had rejected, and the lane was queued meanwhile.
            # It is queued again when the store has answered.
            ready.popleft().is_queued = False
        return bool(ready)

    def take(self, limit: int = sys.maxsize) -> tuple[Lane, list[AdvanceItem]]:
        """Take the ready prefix, `limit` events at most, of the lane that has waited longest.

        `finish` it before it is queued again.

        Raises:
            IndexError: No lane is ready; see `has_ready`.
        """
        lane = self._ready.popleft()
        lane.is_queued = False
        lane.is_advancing = True
        entries = lane.entries
        batch: list[AdvanceItem] = []
        while entries and not entries[0].unresolved and len(batch) < limit:
            entry = entries.popleft()
            entry.is_taken = True
            batch.append(AdvanceItem(entry.payload, self._outcome(entry)))
        self.outstanding -= len(batch)
        return lane, batch

    def _outcome(self, entry: Entry) -> AdvanceOutcome:
        if entry.rejected or entry.failed:
            return entry.outcome()
        # Almost all outcomes are equal, and they are frozen: one object serves them all.
        standing = entry.standing
        assert standing is not None
        outcome = self._clean.get(standing)
        if outcome is None:
            outcome = self._clean[standing] = entry.outcome()
        return outcome

    def finish(self, lane: Lane) -> None:
        """The advance of what was taken from `lane` has returned."""
        lane.is_advancing = False
        if lane.is_ready:
            self._queue(lane)
        elif not lane.entries:
            del self._lanes[lane.key]
