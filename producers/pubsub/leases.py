"""The leases of received messages (their ack deadlines), and when each has to be extended. No I/O, no clock.

The event loop adds and releases leases, and the thread of `renewing.py` extends leases. A lock protects the leases.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from threading import Lock
from typing import Final

LONGEST_DEADLINE_S: Final = 600
"""The longest lease that Pub/Sub grants at once."""
_RENEW_AT: Final = 0.5
"""The part of a lease after which the lease is extended, early enough for several attempts."""
_JITTER: Final = 0.1
"""An extension is shifted at random by up to this fraction of the deadline, so that leases that began together do not
all fall due together.
"""
_TOGETHER: Final = 0.05
"""Leases that fall due within this part of the deadline are extended in one request."""
_SAMPLES: Final = 10_000
_SHARED_BY: Final = 100
"""At most this many of the messages that came together share a lease."""


@dataclass(slots=True, eq=False)
class _Lease:
    """One lease of ids that were received, or extended, together."""

    received_at: float
    expires_at: float
    ack_ids: Sequence[str]
    """All ids of the lease, including ids that have left it."""
    left: int
    """The number of ids that have not left the lease."""

    def leave(self, count: int) -> None:
        """Record that `count` ids have left the lease."""
        self.left -= count
        if self.left <= 0:
            # Free the ids' memory now, because the empty lease stays in the queue until its time comes.
            self.ack_ids = ()


@dataclass(frozen=True, slots=True)
class Due:
    """The leases to extend now.

    Attributes:
        extend: The ack ids whose leases must be extended.
        given_up: The ack ids that have been leased for `max_extension_s`. They are not extended, and their messages
            come again.
        deadline_s: The extended leases end this number of seconds after the extension.
    """

    extend: Sequence[str]
    given_up: Sequence[str]
    deadline_s: int


class LeaseTimes:
    """Counts how long messages were leased, in whole seconds. Older messages count less."""

    def __init__(self) -> None:
        self._counts = [0] * (LONGEST_DEADLINE_S + 1)
        self._total = 0

    def add(self, seconds: float, count: int = 1) -> None:
        """Record that `count` messages were leased for `seconds`."""
        self._counts[min(max(int(seconds) + 1, 0), LONGEST_DEADLINE_S)] += count
        self._total += count
        if self._total >= _SAMPLES:
            self._counts = [count // 2 for count in self._counts]
            self._total = sum(self._counts)

    def percentile_99(self) -> int:
        """Return the lease time in seconds that 99 of 100 messages did not exceed; 0 if none is recorded."""
        above = self._total // 100
        for seconds in range(LONGEST_DEADLINE_S, 0, -1):
            above -= self._counts[seconds]
            if above < 0:
                return seconds
        return 0


class Leases:
    """The leases of one stream.

    A lease ends when it is released, when it was extended up to `max_extension_s`, or when Pub/Sub refuses an
    extension. All times are seconds of one monotonic clock, which the caller chooses.

    Args:
        fixed_deadline_s: How long a lease lasts. None: as long as `LeaseTimes` suggests.
    """

    def __init__(
        self,
        *,
        fixed_deadline_s: int | None,
        min_deadline_s: int,
        max_extension_s: float,
        random: Random | None = None,
    ) -> None:
        self._fixed_deadline_s = fixed_deadline_s
        self._min_deadline_s = min_deadline_s
        self._max_extension_s = max_extension_s
        self._random = random or Random()
        self._lease_times = LeaseTimes()
        self._leases: dict[str, _Lease] = {}
        self._queue: list[tuple[float, int, _Lease]] = []
        """The leases by the time of their extension."""
        self._pushed = 0
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._leases)

    def __contains__(self, ack_id: str) -> bool:
        return ack_id in self._leases

    @property
    def deadline_s(self) -> int:
        """The length of a lease that begins or is extended now."""
        if self._fixed_deadline_s is not None:
            return self._fixed_deadline_s
        with self._lock:
            usual = self._lease_times.percentile_99()
        return min(max(usual, self._min_deadline_s), LONGEST_DEADLINE_S)

    def begin(self, ack_ids: Sequence[str], now: float, deadline_s: int) -> None:
        """Begin the leases of messages that were received now."""
        with self._lock:
            for start in range(0, len(ack_ids), _SHARED_BY):
                part = ack_ids[start : start + _SHARED_BY]
                self._schedule(part, now, now + deadline_s, self._half(now, deadline_s))

    def release(self, ack_ids: Iterable[str], now: float) -> list[float]:
        """Stop extending the leases of messages that are acknowledged or given back.

        Returns: When each lease ends; `now` for an id without a lease.
        """
        ends = []
        last: _Lease | None = None
        count = 0
        with self._lock:
            pop, add = self._leases.pop, self._lease_times.add
            for ack_id in ack_ids:
                lease = pop(ack_id, None)
                if lease is None:
                    ends.append(now)
                    continue
                ends.append(lease.expires_at)
                if lease is not last:
                    if last is not None:
                        add(now - last.received_at, count)
                        last.leave(count)
                    last, count = lease, 0
                count += 1
            if last is not None:
                add(now - last.received_at, count)
                last.leave(count)
        return ends

    def next_at(self) -> float | None:
        """Return when an extension is due; None if nothing is leased."""
        with self._lock:
            while self._queue:
                at, _, lease = self._queue[0]
                if lease.left > 0:
                    return at
                heapq.heappop(self._queue)
            return None

    def take_due(self, now: float) -> Due:
        """Return the leases to extend now.

        The caller requests the extensions, and reports to `extended`, `put_off` or `lose` how each lease fared. A lease
        without a report is due again after half a deadline.
        """
        deadline_s = self.deadline_s
        limit = now + deadline_s * _TOGETHER
        extend: list[str] = []
        given_up: list[str] = []
        with self._lock:
            due: dict[_Lease, list[str]] = {}
            while self._queue and self._queue[0][0] <= limit:
                _, _, lease = heapq.heappop(self._queue)
                ack_ids = [one for one in lease.ack_ids if self._leases.get(one) is lease]
                if now >= lease.received_at + self._max_extension_s:
                    for ack_id in ack_ids:
                        del self._leases[ack_id]
                    given_up += ack_ids
                elif ack_ids:
                    extend += ack_ids
                    due[lease] = ack_ids
            for lease, ack_ids in due.items():
                at = self._half(now, deadline_s)
                self._schedule(ack_ids, lease.received_at, lease.expires_at, at)
        return Due(extend, given_up, deadline_s)

    def extended(self, ack_ids: Iterable[str], asked_at: float, deadline_s: int) -> None:
        """Record an extension; `asked_at` is the time just before the request."""
        with self._lock:
            for lease, part in self._by_lease(ack_ids).items():
                at = self._half(asked_at, deadline_s)
                self._schedule(part, lease.received_at, asked_at + deadline_s, at)

    def put_off(self, ack_ids: Iterable[str], until: float) -> None:
        """Record that Pub/Sub was not reached: the leases are due again at `until`."""
        with self._lock:
            for lease, part in self._by_lease(ack_ids).items():
                self._schedule(part, lease.received_at, lease.expires_at, until)

    def lose(self, ack_ids: Iterable[str]) -> None:
        """Drop leases that Pub/Sub has ended: their messages come again."""
        with self._lock:
            for ack_id in ack_ids:
                lease = self._leases.pop(ack_id, None)
                if lease is not None:
                    lease.leave(1)

    def _by_lease(self, ack_ids: Iterable[str]) -> Mapping[_Lease, list[str]]:
        """Remove the ids from their leases; return them by lease."""
        found: dict[_Lease, list[str]] = {}
        for ack_id in ack_ids:
            lease = self._leases.get(ack_id)
            if lease is not None:
                found.setdefault(lease, []).append(ack_id)
        for lease, part in found.items():
            lease.leave(len(part))
        return found

    def _half(self, now: float, deadline_s: float) -> float:
        """Return when to extend a lease that was begun or extended at `now`."""
        jitter = self._random.uniform(-_JITTER, _JITTER)
        return now + deadline_s * (_RENEW_AT + jitter)

    def _schedule(
        self, ack_ids: Sequence[str], received_at: float, expires_at: float, at: float
    ) -> None:
        """Put the ids into one new lease, to be extended at `at`."""
        lease = _Lease(received_at, expires_at, ack_ids, len(ack_ids))
        self._leases.update(dict.fromkeys(ack_ids, lease))
        self._pushed += 1
        heapq.heappush(self._queue, (at, self._pushed, lease))
