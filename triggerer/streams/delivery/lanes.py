"""The lanes of a group, and the queue of the lanes that may advance. Synchronous, no I/O."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Container, Hashable, Iterator
from typing import Any, Final

from triggerer.abc import AdvanceItem, AdvanceOutcome
from triggerer.streams.delivery.lane import Decide, Entry, Lane

_EMPTY_LANES: Final = 128
"""A group remembers at most this number of empty lanes, at 100 bytes each. Most are soon needed again."""


def _ignore(_: Lane) -> None:
    pass


def _as_it_is(_: Entry, outcome: AdvanceOutcome) -> AdvanceOutcome | None:
    return outcome


class Lanes:
    """The lanes of a group, and a queue of lanes whose head is ready.

    Adding an event costs O(1), and so does queueing or finishing a lane. A lane with a stuck head costs nothing.

    A lane is full when it has reached its bound in events or in bytes. The caller of `append` enforces the bounds. The
    message that fills the lane may exceed the bound in bytes. Otherwise a message that is larger than the bound would
    wait for ever.
    """

    def __init__(self, bound: int = sys.maxsize, bound_bytes: int = sys.maxsize) -> None:
        self.bound = bound
        """The bound of one lane's outstanding events."""
        self.bound_bytes = bound_bytes
        """The bound of the total size of one lane's outstanding events, in bytes."""
        self.full: dict[Hashable, Lane] = {}
        """The lanes that have been full and are still above half of a bound.

        When a lane has fallen to half of its bounds, it leaves this dictionary, and `on_low_water` is called.
        """
        self.newly_full: Lane | None = None
        """The lane that has just reached a bound. The caller of `append` handles it, and sets this to None."""
        self.outstanding = 0
        self.outstanding_bytes = 0
        self.oldest_at = 0.0
        """The monotonic time at which the first event of the last taken batch was broadcast."""
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
        """Return the lane, which may be empty. None: the lane is unknown, so it has no outstanding events."""
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
        """Queue a lane for its next advance, because its head is ready. Does nothing if the lane is already queued."""
        if not lane.is_scheduled:
            lane.is_scheduled = True
            self._ready.append(lane)

    @property
    def has_ready(self) -> bool:
        ready = self._ready
        while ready and not ready[0].is_ready:
            # The head was resolved when the lane was queued, but waits again: a filter rejected the message and then
            # derived one more event from it. The lane is queued again when the store has answered.
            ready.popleft().is_scheduled = False
        return bool(ready)

    def batches(self, limit: int) -> Iterator[list[AdvanceItem]]:
        """Yield the batches of ready lanes. A batch counts as advanced when the caller asks for the next one."""
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

        The list is empty if `decide` lets the first event wait. The caller advances the events, and then calls
        `finish`.

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
        """Take ready events of the lanes that have waited longest, until `limit` events are taken.

        One lane gives at most `limit_of_lane` events, and the last lane may exceed `limit`. The
        caller advances the events, and then calls `finish` for each lane.
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
                # The lane has a single event, as in sources where each message is its own lane. These lines do what
                # `Lane.take` does, and save the call.
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
        """Count the lane's batch as advanced: its `advance` has returned, or the producer has reported the lane."""
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
