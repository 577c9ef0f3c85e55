"""Tracks which subscriber has passed which event. Synchronous, no I/O.

Events are numbered in broadcast order. Each subscriber passes the events in this order.

- A subscriber's `done` is the number of the first event that it has not passed.
- All subscribers have passed the events before the lowest `done`. The ledger releases these events to the lanes.
- A heap finds the lowest `done`. An item of the heap is corrected only when it reaches the top.
- An idle subscriber has no event to resolve. Its `done` is above all event numbers.

Each event has three counts of subscribers: those that ack it, those that fail it, and those that
failed before they pulled it. The second count includes the third.

Neighbouring events usually have equal counts, so the ledger stores only the changes, called *steps*. A step has the
number of the first event with the new counts. A subscriber that joins, fails or leaves adds one or two steps.
"""

from __future__ import annotations

import heapq
import sys
from bisect import bisect_left
from collections.abc import Hashable
from operator import itemgetter
from typing import Any, Final

from triggerer.streams.delivery.lane import Entry, OutcomeCounts, Rejection
from triggerer.streams.delivery.lanes import Lanes

IDLE: Final = sys.maxsize
"""`done` of an idle member. Until `Ledger.mark_active`, the member passes every event as it is broadcast."""
_TRIM_AT = 512
_TRIM_AT_BYTES = 1024 * 1024
_number = itemgetter(0)


class LedgerMember:
    """A subscriber as the ledger sees it."""

    __slots__ = ("done", "failed_from", "is_present", "joined_at", "order")

    def __init__(self) -> None:
        self.done = 0
        """The member has passed every event before this number. `IDLE`: it passes each event at its broadcast.

        While the member is not idle, its subscriber may increase the number.
        """
        self.joined_at = 0
        """The number of the first event that the member must resolve."""
        self.is_present = False
        self.failed_from: int | None = None
        """The first event that counts as failed because the member failed or left. None: the member is present."""
        self.order = 0
        """The order number in the member's current heap item. Items of the member with another number are outdated."""


class Ledger:
    """The events that some member has not passed yet. Events that all members have passed are released to the lanes.

    `events` and `entries` are parallel lists, and their first item has the number `base`. On the fast path, which needs
    no acknowledgements, `entries` stays empty. Readers index by `number - base`, and read `base` again after every
    wait.
    """

    def __init__(self, lanes: Lanes | None) -> None:
        self.lanes = lanes
        self.events: list[Any] = []
        self.entries: list[Entry] = []
        self.base = 0
        self.next_seq = 0
        """The number that the next event gets."""
        self.passed = 0
        """The events before this number were passed by every member, and released to the lanes."""
        self._passed_bytes = 0
        """The total size of the events before `passed` that are still in the lists."""
        self._heap: list[tuple[int, int, LedgerMember]] = []
        self._joined = 0
        self._present = 0
        self._steps: list[tuple[int, int, int, int]] = []
        self._counts = OutcomeCounts(0, 0, 0)

    # Broadcasting

    def broadcast(self, event: Any) -> None:
        """Append an event of the fast path, which is not acknowledged."""
        self.events.append(event)
        self.next_seq += 1

    def broadcast_in_lane(
        self, event: Any, payload: Any, lane: Hashable, now: float, size_bytes: int = 0
    ) -> None:
        """Append an event that present members must resolve. For absent members the event counts as failed."""
        assert self.lanes is not None
        seq = self.next_seq
        self.entries.append(self.lanes.append(lane, seq, payload, now, size_bytes))
        self.events.append(event)
        self.next_seq = seq + 1

    def entry(self, seq: int) -> Entry:
        """The entry of an event that some member has not passed."""
        return self.entries[seq - self.base]

    def clear(self) -> None:
        """Drop all events. Afterwards no member may read or resolve an event."""
        self.events.clear()
        self.entries.clear()
        self.base = self.next_seq

    # Membership

    def join(self, member: LedgerMember, *, was_absent: bool) -> None:
        """Require `member` to resolve every event from now on.

        Args:
            was_absent: True if the member counted as absent until now.
        """
        member.done = member.joined_at = self.next_seq
        member.is_present = True
        member.failed_from = None
        self._present += 1
        self._push(member)
        self._step(self.next_seq, 1, -1 if was_absent else 0)

    def mark_idle(self, member: LedgerMember) -> None:
        """Record that `member` has passed all events, and passes each new event as soon as it is broadcast."""
        member.done = IDLE

    def mark_active(self, member: LedgerMember, seq: int) -> None:
        """Record that the idle `member` must resolve the newest event. `seq` is the number of this event."""
        member.done = seq
        self._push(member)

    def add_absent(self) -> None:
        """Count every event from now on as failed for a member that is known but cannot join yet."""
        self._step(self.next_seq, 0, 1)

    def remove_absent(self) -> None:
        """Stop counting an absent member. Events that were broadcast while it was absent stay failed for it."""
        self._step(self.next_seq, 0, -1)

    def fail(self, member: LedgerMember, opened: Entry | None) -> None:
        """Fail every event that `member` has not passed. From now on the member is absent.

        Args:
            opened: The event that the member's filter has open. This event fails even if the filter
                has rejected the event, unless the advance of the event has begun.
        """
        member.done = min(member.done, self.next_seq)
        if opened is not None and not opened.is_in_flight:
            if opened.seq < member.done:
                # The member has rejected its open event. Now the member fails, so the event counts as failed.
                self.refuse(member, opened)
            elif opened.nacks is not None and opened.nacks.has_refused(member):
                # `nacks.failed` counts the member already: the store has refused an event that the member derived. The
                # step below counts the member again, so subtract it here.
                opened.nacks.failed -= 1
        if opened is not None and opened.seq >= member.done and not opened.is_in_flight:
            opened.make_nacks().unread -= 1
        member.failed_from = member.done
        self._step(member.done, -1, 1, 1)
        self._step(self.next_seq, 0, 0, -1)
        self._remove(member)

    def leave(self, member: LedgerMember, opened: Entry | None) -> None:
        """Remove `member`.

        Events that the member received are acked once their derived events are durable. The other events fail.
        """
        member.done = min(member.done, self.next_seq)
        if opened is not None and opened.seq >= member.done:
            member.done = opened.seq + 1
        member.failed_from = member.done
        if member.done < self.next_seq:
            self._step(member.done, -1, 1, 1)
            self._step(self.next_seq, 0, -1, -1)
        else:
            self._step(self.next_seq, -1, 0)
        self._remove(member)

    def _remove(self, member: LedgerMember) -> None:
        member.is_present = False
        self._present -= 1
        self._compact()

    def _push(self, member: LedgerMember) -> None:
        # The order number tells this item of the heap from outdated items of the same member.
        self._joined += 1
        member.order = self._joined
        heapq.heappush(self._heap, (member.done, member.order, member))
        self._compact()

    def _compact(self) -> None:
        if len(self._heap) > 2 * self._present + 16:
            # While a stuck member's item stays at the top, outdated items below it would never be removed.
            self._heap = [item for item in self._heap if self._is_current(item)]
            heapq.heapify(self._heap)

    def _step(self, seq: int, acking: int, failing: int, unread: int = 0) -> None:
        if self.lanes is None:
            return
        steps = self._steps
        at = bisect_left(steps, seq, key=_number)
        if at < len(steps) and steps[at][0] == seq:
            _, other_acking, other_failing, other_unread = steps[at]
            steps[at] = (seq, acking + other_acking, failing + other_failing, unread + other_unread)
        else:
            steps.insert(at, (seq, acking, failing, unread))

    # Nacks

    def reject(
        self, member: LedgerMember, opened: Entry, rejection: Rejection | None = None
    ) -> None:
        """Count the open event as rejected by `member`, and so as resolved."""
        if member.done <= opened.seq:
            member.done = opened.seq + 1
            nacks = opened.make_nacks()
            if nacks.has_refused(member):
                # An event that is both rejected and failed counts as failed (contract, rule 5).
                return
            nacks.rejected += 1
            # Remember the rejection even if no derived event is being stored. The filter may still derive an event from
            # this one, and the store may refuse it.
            nacks.remember_rejection(member, rejection)

    def refuse(self, member: LedgerMember, entry: Entry) -> None:
        """Count `entry` as failed by `member`, once, for example because the store has refused a derived event.

        Does nothing if `fail` or `leave` has counted the entry already.
        """
        if member.failed_from is not None and entry.seq >= member.failed_from:
            return
        entry.make_nacks().mark_refused(member)

    def miss(self, member: LedgerMember, entry: Entry) -> None:
        """Count `entry` as failed and as unread by `member`, which does not receive the event."""
        self.refuse(member, entry)
        if entry.nacks is not None and entry.nacks.has_refused(member):
            entry.nacks.unread += 1

    # Progress

    def lowest(self) -> int:
        """Return the lowest `done` of all present members that are not idle, or `next_seq` if there are none."""
        heap = self._heap
        while heap:
            done, order, member = heap[0]
            if not self._is_current(heap[0]):
                heapq.heappop(heap)
            elif member.done != done:
                heapq.heapreplace(heap, (member.done, order, member))
            else:
                return min(done, self.next_seq)
        return self.next_seq

    @staticmethod
    def _is_current(item: tuple[int, int, LedgerMember]) -> bool:
        _, order, member = item
        return member.is_present and order == member.order

    def release_passed(self, limit: int = sys.maxsize) -> bool:
        """Release to the lanes up to `limit` events that all members have passed. Return whether more can be released.

        The amortised cost is O(number of released events).
        """
        lowest = self.lowest()
        if lowest == self.passed:
            return False
        until = min(lowest, self.passed + limit)
        if self.lanes is not None:
            self._release(until)
        self.passed = until
        behind = until - self.base
        if (
            behind >= _TRIM_AT
            or 2 * behind >= len(self.events)
            or self._passed_bytes >= _TRIM_AT_BYTES
        ):
            # A trim moves all later items, so it is worth its cost only if it frees 512 events, 1 MiB, or half of the
            # list.
            del self.events[:behind]
            del self.entries[:behind]
            self.base = until
            self._passed_bytes = 0
        return until < lowest

    def _release(self, until: int) -> None:
        assert self.lanes is not None
        queue = self.lanes.queue
        steps = self._steps
        at = self.passed
        passed_bytes = self._passed_bytes
        while at < until:
            # Up to the next step all events have the same counts.
            if steps and steps[0][0] <= at:
                self._apply_steps(at)
            end = min(until, steps[0][0]) if steps else until
            counts = self._counts
            for entry in self.entries[at - self.base : end - self.base]:
                entry.counts = counts
                passed_bytes += entry.size_bytes
                unresolved = entry.unresolved = entry.unresolved - 1
                if not unresolved:
                    lane = entry.lane
                    # If this entry is not the lane's head, `Lanes.finish` queues the lane later.
                    if lane is not None and lane.head is entry:
                        queue(lane)
            at = end
        self._passed_bytes = passed_bytes

    def _apply_steps(self, seq: int) -> None:
        """Apply the steps up to and including `seq`."""
        before = self._counts
        count, acking, failing, unread = 0, before.acking, before.failing, before.unread
        for at, more_acking, more_failing, more_unread in self._steps:
            if at > seq:
                break
            acking += more_acking
            failing += more_failing
            unread += more_unread
            count += 1
        del self._steps[:count]
        self._counts = OutcomeCounts(acking, failing, unread)
