"""Finds subscribers that hold up a waiting sibling, and makes them fall behind alone (contract, rules 8 and 18)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

import anyio
from anyio.lowlevel import checkpoint

from triggerer.domain.events import EventSink, WatcherRef
from triggerer.domain.watchers.lane_positions import following, is_before
from triggerer.errors import SubscriberOverflow
from triggerer.streams.cancellation import plugin_code
from triggerer.streams.delivery.group_state import GroupState
from triggerer.streams.delivery.lane import Entry, Lane
from triggerer.streams.delivery.subscriber import Subscriber
from triggerer.streams.delivery.subscribers import Subscribers
from triggerer.streams.pending_limit import PendingLimit
from triggerer.synchronization import AutoResetEvent

TURNS_BEFORE_OVERFLOW: Final = 8
"""Loop ticks that a slow subscriber gets before it is failed. In this time a filter that can read gets its turn to run.
"""


class _Filled(NamedTuple):
    """The fewest newest events of a lane or the stream that together exceed half of its bound."""

    newest: int
    """The number of the newest event."""
    first: int
    """The number of the first of these events. -1: all events together fill at most half of the bound."""
    before_newest: int | None
    """The number of the event before the newest event; -1 if no event is before it. Set only if the newest event alone
    fills more than half of the bound, otherwise None.
    """
    broadcast_at: float
    """When the newest event was broadcast."""


class SlowSubscribers:
    """Fails subscribers that hold up the poll or a paused lane while a sibling waits for messages.

    A full lane or stream stays paused until its outstanding events fill at most half of its bound. A subscriber is the
    cause if all of these conditions hold:

    - The subscriber's queue is full, or the events that it has not passed fill more than half of the bound.
    - A sibling has passed all events of the lane or stream, or has read the lane to its end while it catches up.
    - A sibling has passed or read the first message that the subscriber has not passed.
    - The store is not slow. Otherwise all subscribers wait for the store.

    If the newest message alone fills more than half of a bound, a subscriber has `overflow_grace` seconds to pass it.

    The group starts `run` only if watchers may fall behind. A call of `request_check` makes `run` check until neither
    the poll nor a lane is paused.
    """

    def __init__(
        self, state: GroupState, subscribers: Subscribers, pending: PendingLimit, sink: EventSink
    ) -> None:
        self.is_poll_paused = False
        self._state = state
        self._subscribers = subscribers
        self._pending = pending
        self._sink = sink
        self._full_lane: Lane | None = None
        self._needed = AutoResetEvent()
        self._filled: dict[Lane | None, _Filled] = {}
        self._again_at = math.inf
        """The time at which to look again if nothing has moved by then."""

    # Called by the flow control

    def request_check(self) -> None:
        """Make `run` check for slow subscribers, because a lane or the poll was paused."""
        self._needed.set()
        self._state.progress.signal_room()

    def mark_poll_paused(self, full_lane: Lane | None) -> None:
        """Record that the poll pauses.

        Args:
            full_lane: The full lane for which the poll pauses. None: the poll pauses for another reason.
        """
        self.is_poll_paused, self._full_lane = True, full_lane
        self.request_check()

    def mark_poll_resumed(self) -> None:
        self.is_poll_paused, self._full_lane = False, None

    def full_subscribers(self) -> list[Subscriber]:
        """Return the subscribers whose queue is full. Any thread may call this method."""
        limit = self._state.ledger.next_seq - self._state.settings.subscriber_queue_size
        # Iterate over a copy: in another thread, a subscriber may join or leave during the iteration.
        present = list(self._subscribers.present)
        return [subscriber for subscriber in present if subscriber.pulled <= limit]

    def fail(self, subscriber: Subscriber, reason: str) -> None:
        ledger = self._state.ledger
        error = SubscriberOverflow(
            f"{subscriber.name} fell {ledger.next_seq - min(subscriber.done, ledger.next_seq)} events"
            f" behind the shared stream {self._state.name}, and {reason}",
            hint="make its filter faster; if its queue was full, raise shared_stream_subscriber_queue_size",
        )
        self._subscribers.fail(subscriber, error)

    # Checking

    async def run(self) -> None:
        try:
            with plugin_code(f"get_position() of the shared stream {self._state.name}"):
                while True:
                    await self._needed.wait()
                    await self._check_while_needed()
        except Exception:
            self._state.is_ending = True
            raise

    async def _check_while_needed(self) -> None:
        while self.is_poll_paused or self._paused_lanes():
            if self._find():
                for _ in range(TURNS_BEFORE_OVERFLOW):
                    await checkpoint()
                for subscriber in self._find():
                    self.fail(subscriber, "its siblings wait for further messages")
                # Search again without waiting for a change: a change during the ticks above would not wake this task.
            elif self._is_store_slow:
                await self._wait_for_store()
            else:
                await self._wait_for_change()
        self._filled.clear()

    def _paused_lanes(self) -> list[Lane]:
        """Return the lanes that receive nothing now."""
        state = self._state
        if state.producer is not None and state.producer.pauses_lanes:
            return list(state.lanes.full.values())
        full_lane = self._full_lane
        return (
            []
            if full_lane is None or state.lanes.full.get(full_lane.key) is not full_lane
            else [full_lane]
        )

    @property
    def _is_store_slow(self) -> bool:
        return self._sink.is_full or self._pending.count >= self._pending.limit

    async def _wait_for_store(self) -> None:
        """Wait until the store has room for further events."""
        if self._sink.is_full:
            await self._sink.wait_for_room()
        else:
            await self._pending.wait_for_room()

    async def _wait_for_change(self) -> None:
        progress = self._state.progress
        if self._again_at == math.inf:
            await progress.wait_for_room()
            return
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._cancel_at, self._again_at, tasks.cancel_scope)
            await progress.wait_for_room()
            tasks.cancel_scope.cancel()

    async def _cancel_at(self, instant: float, scope: anyio.CancelScope) -> None:
        await self._state.clock.sleep_until(instant)
        scope.cancel()

    # Finding them

    def _find(self) -> list[Subscriber]:
        """Return the slow subscribers, and set when to look again."""
        state, ledger, lanes = self._state, self._state.ledger, self._paused_lanes()
        self._again_at = math.inf
        if len(self._filled) > len(lanes) + 1:
            # Some lanes have room again, and their results are outdated. Drop all results.
            self._filled.clear()
        if state.is_ending or state.is_stopping or state.blocked_by or self._is_store_slow:
            # Nothing would be broadcast even if a subscriber fell behind.
            return []
        lowest = ledger.lowest()
        if lowest >= ledger.next_seq:
            # Every subscriber has passed every event: the store or the broker is slow. This is the usual case.
            return []
        found: dict[Subscriber, None] = {}
        if self.is_poll_paused and any(one.done >= ledger.next_seq for one in self._subscribers):
            found.update(dict.fromkeys(self.full_subscribers() or self._filling_stream()))
        for lane in lanes:
            tail = lane.tail
            if tail is not None and tail.seq >= lowest:
                found.update(dict.fromkeys(self._filling_lane(lane, tail)))
        return [one for one in found if self._has_sibling_past(one)]

    def _filling_stream(self) -> Iterator[Subscriber]:
        settings, tail = self._state.settings, self._state.ledger.entries[-1]
        bound, bound_bytes = settings.max_outstanding, settings.max_outstanding_bytes
        return self._subscribers_filling(
            self._find_filled(None, tail, bound // 2, bound_bytes // 2)
        )

    def _filling_lane(self, lane: Lane, tail: Entry) -> list[Subscriber]:
        lanes = self._state.lanes
        filled = self._find_filled(lane, tail, lanes.bound // 2, lanes.bound_bytes // 2)
        slow = list(self._subscribers_filling(filled))
        if not slow or any(self._is_past(lane, tail, one) for one in self._subscribers):
            return slow
        # A watcher that has read the whole lane while it catches up waits for more, too.
        others = self._watchers_that_read(lane, tail)
        return [one for one in slow if not others.issubset(one.source.watchers)]

    def _is_past(self, lane: Lane, entry: Entry, subscriber: Subscriber) -> bool:
        """Return whether the subscriber has passed this entry of the lane, and receives the lane's next message live.

        A subscriber does not receive it live if all of its watchers will read it from their backlogs.
        """
        state = self._state
        if subscriber.done <= entry.seq or subscriber.admission.waits_for(lane.key):
            return False
        if lane.key not in state.backlogs.by_lane:
            return True
        coming = following(state.position_of(entry))
        return state.backlogs.live_source(subscriber.source, lane.key, coming) is not None

    def _has_sibling_past(self, slow: Subscriber) -> bool:
        """Return whether a sibling has passed the first message that the slow subscriber has not passed.

        A sibling also counts if it read the message while it caught up. If no sibling has passed the message, the slow
        subscriber must not fall behind. Otherwise the message could fail for all subscribers, and the broker would
        redeliver it to all of them.
        """
        entry = self._state.ledger.entry(slow.done)
        lane = entry.lane
        assert lane is not None
        return any(
            one is not slow and self._is_past(lane, entry, one) for one in self._subscribers
        ) or not self._watchers_that_read(lane, entry).issubset(slow.source.watchers)

    def _watchers_that_read(self, lane: Lane, entry: Entry) -> set[WatcherRef]:
        """Return the watchers with a backlog in the lane that have read this message while they caught up."""
        backlogs = self._state.backlogs.by_lane.get(lane.key)
        if not backlogs:
            return set()
        position = self._state.position_of(entry)
        return {
            backlog.watcher
            for backlog in backlogs.values()
            if is_before(position, backlog.cursor)
            and self._state.source_of(backlog.watcher) is not None
        }

    def _subscribers_filling(self, filled: _Filled) -> Iterator[Subscriber]:
        due = filled.broadcast_at + self._state.settings.overflow_grace
        is_over = due <= self._state.clock.monotonic()
        for subscriber in self._subscribers:
            if subscriber.done > filled.first:
                continue
            if filled.before_newest is None or subscriber.done <= filled.before_newest or is_over:
                yield subscriber
            else:
                self._again_at = min(self._again_at, due)

    def _find_filled(self, lane: Lane | None, tail: Entry, half: int, half_bytes: int) -> _Filled:
        """Return the newest events of the lane, or of the stream (None), that exceed half of a bound.

        The result is cached until a newer event is broadcast.
        """
        filled = self._filled.get(lane)
        if filled is None or filled.newest != tail.seq:
            filled = _find_filled(self._newest_first(lane), tail, half, half_bytes)
            self._filled[lane] = filled
        return filled

    def _newest_first(self, lane: Lane | None) -> Iterator[Entry]:
        for entry in reversed(self._state.ledger.entries):
            if lane is None or entry.lane is lane:
                yield entry


def _find_filled(newest_first: Iterator[Entry], tail: Entry, half: int, half_bytes: int) -> _Filled:
    size_bytes = 0
    for count, entry in enumerate(newest_first, 1):
        size_bytes += entry.size_bytes
        if count > half or size_bytes > half_bytes:
            before_newest = None
            if count == 1:
                last = next(newest_first, None)
                before_newest = -1 if last is None else last.seq
            return _Filled(tail.seq, entry.seq, before_newest, tail.broadcast_at)
    return _Filled(tail.seq, -1, None, tail.broadcast_at)
