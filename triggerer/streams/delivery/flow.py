"""Flow control: pauses the poll when a limit is reached, and calls the producer's hooks."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

from triggerer.abc import SharedStreamProducer
from triggerer.streams.cancellation import plugin_code
from triggerer.streams.delivery.group_state import GroupState
from triggerer.streams.delivery.lane import Lane
from triggerer.streams.delivery.slow_subscribers import TURNS_BEFORE_OVERFLOW, SlowSubscribers
from triggerer.streams.delivery.subscriber import Subscriber
from triggerer.streams.delivery.subscribers import Subscribers
from triggerer.synchronization import AutoResetEvent


class Flow:
    """Limits the outstanding events of one group.

    The poll calls `check` before a broadcast once `check_at` or the group's limit in bytes is reached. After a
    broadcast that has filled a lane, the poll calls `handle_full_lane`.

    If the producer can pause lanes, only the full lane pauses. Otherwise the poll pauses at that lane's next event. If
    one of the producer's hooks raises, for example `pause_lane`, the group ends.
    """

    def __init__(
        self, state: GroupState, subscribers: Subscribers, slow_subscribers: SlowSubscribers
    ) -> None:
        self._state = state
        self._subscribers = subscribers
        self._slow_subscribers = slow_subscribers
        self._settings = state.settings
        self._ledger = state.ledger
        self._lanes = state.lanes
        self._progress = state.progress
        self.check_at = 0
        """The first event number for which the poll must call `check`."""
        self._yield_at = 0
        self._free_until = 0
        self._awaits_members = False
        self._paused: set[Lane] = set()
        """The lanes that are paused at the producer."""
        self._to_resume: deque[Lane] = deque()
        self._resume_needed = AutoResetEvent()
        self._hook_lock = anyio.Lock()
        """The hooks are called one at a time."""
        self._lanes.on_low_water = self._record_low_water

    # The poll

    async def check(self, payload: Any = None) -> None:
        """Let other tasks run, and wait until an event may be broadcast.

        Meanwhile the messages stay with the broker. A subscriber with a full queue fails if it reads no event within
        `overflow_grace`.

        While the group stops, the last pulled event is not broadcast in ack mode, because the broker will redeliver it.
        On the fast path the event is broadcast, because nothing would deliver it again.

        Args:
            payload: The broker payload of the pulled event, for `get_advance_lane`. None on the fast path.
        """
        self._state.is_poll_waiting = True
        try:
            await self._check(payload)
        finally:
            self._state.is_poll_waiting = False

    async def _check(self, payload: Any) -> None:
        if self._ledger.next_seq >= self._yield_at:
            await checkpoint()
            self._yield_at = self._ledger.next_seq + self._burst()
        lane: Hashable = None
        if self._lanes.full and self._state.producer is not None:
            lane = self._state.producer.get_advance_lane(payload)
        if (
            self._ledger.next_seq >= self._free_until
            or self._state.is_stopping
            or self._awaits_members
            or self._state.blocked_by
            or self._lanes.outstanding_bytes >= self._settings.max_outstanding_bytes
            or lane in self._lanes.full
        ):
            self._free_until = self._first_not_free()
            while not self._is_free(lane):
                await self._pause_until_free(lane)
                # Other tasks ran while `resume()` was awaited, and may have reached a limit.
                self._free_until = self._first_not_free()
        # The event may be broadcast. So if the poll waited for a member, a member has joined.
        self._awaits_members = False
        must_check = self._lanes.full or self._state.is_stopping or self._state.blocked_by
        self.check_at = 0 if must_check else min(self._free_until, self._yield_at)

    def _burst(self) -> int:
        """Return the number of events that may be broadcast before other tasks must run."""
        readers = len(self._subscribers) - len(self._state.selection)
        return min(self._settings.burst, self._settings.burst_readings // max(readers, 1)) or 1

    def _first_not_free(self) -> int:
        """Return the number of the first event that must not be broadcast now. Limits of lanes are not considered."""
        next_seq = self._ledger.next_seq
        if (
            self._state.is_closed
            or self._state.blocked_by
            or (self._state.is_stopping and self._state.is_acknowledged)
            or self._is_deserted
        ):
            return next_seq
        if self._lanes.outstanding_bytes >= self._settings.max_outstanding_bytes:
            return next_seq
        free = next_seq + self._settings.max_outstanding - self._lanes.outstanding
        # A subscriber that joins or becomes active later begins to read at `next_seq` or later. So it cannot lower this
        # result.
        lowest = min((one.pulled for one in self._subscribers), default=next_seq)
        return min(free, min(lowest, next_seq) + self._settings.subscriber_queue_size)

    @property
    def _is_deserted(self) -> bool:
        """Return whether all members are absent and wait for their restart.

        A broadcast would then fail for every member, and repeated broadcasts would use up the message's deliveries.
        """
        return self._awaits_members and self._state.is_acknowledged and not len(self._subscribers)

    def _is_free(self, lane: Hashable) -> bool:
        return self._ledger.next_seq < self._free_until and not self._must_wait(lane)

    def _must_wait(self, key: Hashable) -> bool:
        """Return whether an event of this lane must wait until other events of the lane are advanced."""
        lane = self._lanes.full.get(key)
        if lane is None:
            return False
        # The producer may yield a message of a paused lane: it had fetched the message before, or it lost the pause in
        # a rebalance. Such a message waits only if the lane is at its bound.
        return lane not in self._paused or self._lanes.is_full(lane)

    async def _pause_until_free(self, key: Hashable) -> None:
        producer = self._state.producer
        if self._state.is_closed:
            # The poll is being cancelled, but it was woken before that and executes one more step. Wait for the
            # cancellation.
            await anyio.sleep_forever()
        # Record the pause before calling the hooks, because the hooks may take long.
        self._slow_subscribers.mark_poll_paused(
            self._lanes.full.get(key) if self._must_wait(key) else None
        )
        if producer is not None and producer.pauses_lanes and self._must_wait(key):
            # The producer may have forgotten the pause, for example if the lane was reassigned and came back.
            await self._pause_lane(producer, self._lanes.full[key])
        was_full = self._is_full
        if producer is not None:
            await producer.pause()
        while True:
            self._free_until = self._first_not_free()
            # Resume at half of the limit, because pausing the broker for every event would be too expensive.
            if self._is_free(key) and not (was_full and self._is_above_half):
                break
            await self._wait_for_room()
        self._slow_subscribers.mark_poll_resumed()
        if producer is not None:
            await producer.resume()

    @property
    def _is_full(self) -> bool:
        """Return whether the group has reached its limit in events or in bytes."""
        lanes, settings = self._lanes, self._settings
        return (
            lanes.outstanding >= settings.max_outstanding
            or lanes.outstanding_bytes >= settings.max_outstanding_bytes
        )

    @property
    def _is_above_half(self) -> bool:
        lanes, settings = self._lanes, self._settings
        return (
            lanes.outstanding > settings.max_outstanding // 2
            or lanes.outstanding_bytes > settings.max_outstanding_bytes // 2
        )

    async def _wait_for_room(self) -> None:
        full = self._slow_subscribers.full_subscribers()
        before = [subscriber.pulled for subscriber in full]
        deadline = self._state.clock.monotonic() + self._settings.overflow_grace
        if not full:
            # No subscriber's queue is full: the poll waits until outstanding events are advanced. If a subscriber
            # delays their advance, `Deadlines` or `SlowSubscribers` fails the subscriber.
            await self._progress.wait_for_room()
            return
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._cancel_at, deadline, scope)
                await self._until_all_moved(full, before)
                tasks.cancel_scope.cancel()
        if scope.cancelled_caught:
            for subscriber, pulled in zip(full, before, strict=True):
                if subscriber.is_present and subscriber.pulled == pulled:
                    grace = self._settings.overflow_grace
                    self._slow_subscribers.fail(subscriber, f"did not move for {grace:g} s")

    async def _cancel_at(self, deadline: float, scope: anyio.CancelScope) -> None:
        if self._settings.overflow_grace <= 0:
            # Without a grace, still wait for some loop ticks, because a reader that waits for its turn is not stuck.
            for _ in range(TURNS_BEFORE_OVERFLOW):
                await checkpoint()
        clock = self._state.clock
        await clock.sleep_until(deadline)
        # If the sleep ended late, the event loop was blocked, and no reader could read. Add that time to the grace.
        woken = clock.monotonic()
        await clock.sleep_until(woken + (woken - deadline))
        scope.cancel()

    async def _until_all_moved(self, full: list[Subscriber], before: list[int]) -> None:
        """Wait until each of the `full` subscribers has read an event or is gone.

        Args:
            before: The `pulled` of each subscriber when the poll paused.
        """
        while any(
            subscriber.is_present and subscriber.pulled == pulled
            for subscriber, pulled in zip(full, before, strict=True)
        ):
            await self._progress.wait_for_room()

    # Lanes

    async def handle_full_lane(self) -> None:
        """Let the poll call `check` for every event while a lane is full. Pause the lane if the producer can."""
        lane, self._lanes.newly_full = self._lanes.newly_full, None
        self.check_at = 0
        producer = self._state.producer
        if lane is not None and producer is not None and producer.pauses_lanes:
            self._slow_subscribers.request_check()
            await self._pause_lane(producer, lane)

    async def _pause_lane(self, producer: SharedStreamProducer, lane: Lane) -> None:
        async with self._hook_lock:
            if lane.key in self._lanes.full:
                self._paused.add(lane)
                await producer.pause_lane(lane.key)

    def _record_low_water(self, lane: Lane) -> None:
        self._progress.signal_room()
        if lane in self._paused:
            self._to_resume.append(lane)
            self._resume_needed.set()

    async def run(self) -> None:
        """Resume paused lanes.

        This runs in a task of its own, because the poll cannot resume a lane while it waits for the broker's next
        message.
        """
        try:
            with plugin_code(f"resume_lane() of the shared stream {self._state.name}"):
                await self._resume_lanes()
        except Exception:
            self._state.is_ending = True
            raise

    async def _resume_lanes(self) -> None:
        while True:
            await self._resume_needed.wait()
            while self._to_resume:
                lane = self._to_resume.popleft()
                async with self._hook_lock:
                    if lane in self._paused and self._lanes.full.get(lane.key) is not lane:
                        self._paused.discard(lane)
                        assert self._state.producer is not None
                        await self._state.producer.resume_lane(lane.key)

    # Stopping

    def await_members(self) -> None:
        """Record that no member is present. In ack mode, no event is broadcast until a member has joined."""
        self._awaits_members = True
        self.check_at = 0

    def recheck(self) -> None:
        """Make the poll check `GroupState.blocked_by` before the next broadcast."""
        self.check_at = 0

    def stop_pulling(self) -> None:
        self._state.is_stopping = True
        self.check_at = 0

    def start_pulling(self) -> None:
        self._state.is_stopping = False

    async def wait_while_stopping(self) -> None:
        """While the group is being stopped, wait until `start_pulling`."""
        while self._state.is_stopping:
            await self._progress.wait_for_room()

    async def wait_until_drained(self) -> None:
        while self._state.is_stopping and self._state.outstanding:
            await self._progress.wait_for_room()
            if self._state.is_ending:
                return
