"""Chooses the lane that one watcher reads next, and delays the lanes with failures."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from typing import Final

from triggerer.backoff import Backoff
from triggerer.streams.catchup.backlogs.backlog import Backlog
from triggerer.streams.context import RuntimeContext

_MOST_IN_A_ROW: Final = 30
"""After this number of failures in succession, in any lanes, all lanes wait: the watcher probably fails in all of them.
"""


class _Attempts:
    def __init__(self, context: RuntimeContext) -> None:
        self.quick = context.retry_backoff()
        self.patient = context.restart_backoff()


class LaneTurns:
    """The turns of one watcher's lanes. Synchronous.

    There may be thousands of lanes, because each message may be its own lane. So choosing a lane costs O(log lanes),
    even if all lanes wait after failures.
    """

    def __init__(self, context: RuntimeContext) -> None:
        self._context = context
        self._ready: dict[Backlog, None] = {}
        """The lanes that may be read, in the order of their turns."""
        self._due: dict[Backlog, float] = {}
        """By waiting lane, the time of its next turn. Infinity: the lane waits until `resume` or `restart`."""
        self._heap: list[tuple[float, int, Backlog]] = []
        """The waiting lanes with a finite time, by time. Outdated items of a lane remain here until their time, and are
        ignored.
        """
        self._resting: set[Backlog] = set()
        """The lanes that wait because they had no message. Other lanes wait because of a failure."""
        self._pushed = 0
        self._current: Backlog | None = None
        self._attempts: dict[Backlog, _Attempts] = {}
        self._pace: Backoff = context.restart_backoff()
        self._in_a_row = 0
        self._not_before = -math.inf

    def __bool__(self) -> bool:
        """Return whether any lane waits for a turn."""
        return bool(self._ready or self._due)

    def offer(self, backlog: Backlog) -> None:
        """Queue a lane to be read. A lane that waits because of a failure continues to wait.

        A lane with a message that can be neither stored nor parked (`Backlog.blocked`) waits until that message is
        tried again.
        """
        if backlog in self._resting:
            self._end_wait(backlog)
        if backlog in self._due or backlog is self._current:
            return
        if backlog.blocked is not None and backlog.blocked_until > self._now:
            self._wait_until(backlog, backlog.blocked_until)
            return
        self._ready[backlog] = None

    def next(self) -> Backlog | None:
        """Return the next lane to read, or None if no lane may be read now.

        The lane of the previous call is queued again, unless it has caught up or is gone.
        """
        before, self._current = self._current, None
        if before is not None and not (before.is_gone or before.is_caught_up):
            self.offer(before)
        now = self._now
        if now < self._not_before:
            return None
        for backlog in self._fall_due(now):
            self._ready[backlog] = None
        while self._ready:
            backlog = next(iter(self._ready))
            del self._ready[backlog]
            if backlog.is_gone or backlog.is_caught_up:
                self._attempts.pop(backlog, None)
                continue
            self._current = backlog
            return backlog
        return None

    def due(self) -> float:
        """Return the time of the next turn, by the monotonic clock. A time in the past means now."""
        if self._ready or self._current is not None:
            return self._not_before
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        if not self._heap:
            return math.inf if self._due else self._not_before
        return max(self._heap[0][0], self._not_before)

    def postpone(self, backlog: Backlog, *, is_patient: bool) -> None:
        """Let a lane with a failure wait for a growing delay, or until `restart` if the context forbids retries."""
        if not self._context.restarts:
            self._wait_until(backlog, math.inf)
            return
        attempts = self._attempts.get(backlog)
        if attempts is None:
            attempts = self._attempts[backlog] = _Attempts(self._context)
        backoff = attempts.patient if is_patient else attempts.quick
        self._wait_until(backlog, self._now + backoff.next_delay())

    def delay(self, backlog: Backlog, seconds: float) -> None:
        """Let the lane wait for this time."""
        self._wait_until(backlog, self._now + seconds)

    def rest(self, backlog: Backlog, seconds: float) -> None:
        """Let an empty lane wait for this time, or until it is offered."""
        self._wait_until(backlog, self._now + seconds)
        self._resting.add(backlog)

    def end_rests(self) -> None:
        """Queue every lane that waits because it had no message."""
        for backlog in list(self._resting):
            self.resume(backlog)

    def resume(self, backlog: Backlog) -> None:
        """End a lane's wait, and queue the lane."""
        if self._end_wait(backlog):
            self._ready[backlog] = None

    def _end_wait(self, backlog: Backlog) -> bool:
        self._resting.discard(backlog)
        return self._due.pop(backlog, None) is not None

    def record_failure(self) -> None:
        """Count a failure of any lane."""
        self._in_a_row += 1
        if self._in_a_row >= _MOST_IN_A_ROW and self._context.restarts:
            self._not_before = self._now + self._pace.next_delay()

    def record_success(self, backlog: Backlog) -> None:
        """Record that a message of the lane has passed. The lane's next failure has the shortest delay again."""
        self._attempts.pop(backlog, None)
        if self._in_a_row:
            self._in_a_row = 0
            self._not_before = -math.inf
            self._pace.reset()

    def restart(self) -> None:
        """End the wait of every lane, and queue the lanes."""
        self._ready.update(dict.fromkeys(self._due))
        self._due.clear()
        self._resting.clear()
        self._heap.clear()
        self._not_before = -math.inf

    @property
    def _now(self) -> float:
        return self._context.clock.monotonic()

    def _wait_until(self, backlog: Backlog, due: float) -> None:
        self._ready.pop(backlog, None)
        self._resting.discard(backlog)
        if backlog is self._current:
            self._current = None
        self._due[backlog] = due
        if due < math.inf:
            # An item with an infinite time would remain in the heap after the lane's wait has ended.
            self._pushed += 1
            heapq.heappush(self._heap, (due, self._pushed, backlog))

    def _fall_due(self, now: float) -> Iterator[Backlog]:
        while self._heap and self._heap[0][0] <= now:
            due, _, backlog = heapq.heappop(self._heap)
            if self._due.get(backlog) == due:
                self._end_wait(backlog)
                yield backlog
