"""Which messages the service has leased to us, and when each lease has to be extended. No I/O, no clock.

The loop adds and releases leases, the thread of `renewing` extends them: every method takes the lock for a moment.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from threading import Lock
from typing import Final

LONGEST_DEADLINE_S: Final = 600
"""The longest that the service grants at once."""
_RENEW_AT: Final = 0.5
"""At which part of a lease it is extended: there is time for several attempts."""
_JITTER: Final = 0.1
"""Leases that began together are not all extended at the same moment. Of the deadline."""
_TOGETHER: Final = 0.05
"""What falls due within this part of the deadline is extended in the same request."""
_SAMPLES: Final = 10_000
_SHARED_BY: Final = 100
"""Messages that come together share a lease, so many at most."""


@dataclass(slots=True, eq=False)
class _Lease:
    """What the ids have in common that began, or were extended, together."""

    received_at: float
    expires_at: float
    ack_ids: Sequence[str]
    """Also those that have another lease by now, or none."""
    left: int
    """How many have this one."""

    def leave(self, count: int) -> None:
        """So many of them have another one, or none."""
        self.left -= count
        if self.left <= 0:
            # Not kept until it would have been extended.
            self.ack_ids = ()


@dataclass(frozen=True, slots=True)
class Due:
    """What has to be done now.

    Attributes:
        extend: Ack ids whose leases are to be extended by `deadline_s`.
        given_up: Those that have reached the maximum. They are extended no more, and come again.
    """

    extend: Sequence[str]
    given_up: Sequence[str]
    deadline_s: int


class LeaseTimes:
    """How long messages are held, in whole seconds; older ones count less."""

    def __init__(self) -> None:
        self._counts = [0] * (LONGEST_DEADLINE_S + 1)
        self._total = 0

    def add(self, seconds: float, count: int = 1) -> None:
        """So many messages were held for so long."""
        self._counts[min(max(int(seconds) + 1, 0), LONGEST_DEADLINE_S)] += count
        self._total += count
        if self._total >= _SAMPLES:
            self._counts = [count // 2 for count in self._counts]
            self._total = sum(self._counts)

    def percentile_99(self) -> int:
        """Seconds that 99 of 100 were not held for longer than; 0 where none is known."""
        above = self._total // 100
        for seconds in range(LONGEST_DEADLINE_S, 0, -1):
            above -= self._counts[seconds]
            if above < 0:
                return seconds
        return 0


class Leases:
    """The leases of one stream.

    A lease ends when it is released, when it was extended up to `max_extension_s`, or when the service refuses to
    extend it. Instants are seconds of any monotonic clock, always the same one.

    Args:
        fixed_deadline_s: How long a lease lasts; None: see `deadline_s`.
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
        """When to renew which."""
        self._pushed = 0
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._leases)

    def __contains__(self, ack_id: str) -> bool:
        return ack_id in self._leases

    @property
    def deadline_s(self) -> int:
        """How long a lease lasts that begins or is extended now."""
        if self._fixed_deadline_s is not None:
            return self._fixed_deadline_s
        with self._lock:
            usual = self._lease_times.percentile_99()
        return min(max(usual, self._min_deadline_s), LONGEST_DEADLINE_S)

    def begin(self, ack_ids: Sequence[str], now: float, deadline_s: int) -> None:
        """Messages have come, leased for `deadline_s`."""
        with self._lock:
            for start in range(0, len(ack_ids), _SHARED_BY):
                part = ack_ids[start : start + _SHARED_BY]
                self._schedule(part, now, now + deadline_s, self._half(now, deadline_s))

    def release(self, ack_ids: Iterable[str], now: float) -> list[float]:
        """They are to be acknowledged or given back, and are extended no more; when each lease is over.

        For an id without a lease that is now.
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
        """When something falls due; None: nothing is leased."""
        with self._lock:
            while self._queue:
                at, _, lease = self._queue[0]
                if lease.left > 0:
                    return at
                heapq.heappop(self._queue)
            return None

    def take_due(self, now: float) -> Due:
        """What has to be extended now. None is in another answer before `extended`, `put_off` or half a deadline."""
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
                # In case that nobody reports what became of it.
                at = self._half(now, deadline_s)
                self._schedule(ack_ids, lease.received_at, lease.expires_at, at)
        return Due(extend, given_up, deadline_s)

    def extended(self, ack_ids: Iterable[str], asked_at: float, deadline_s: int) -> None:
        """The service has extended them; `asked_at` is from before it was asked."""
        with self._lock:
            for lease, part in self._by_lease(ack_ids).items():
                at = self._half(asked_at, deadline_s)
                self._schedule(part, lease.received_at, asked_at + deadline_s, at)

    def put_off(self, ack_ids: Iterable[str], until: float) -> None:
        """The service was not reached: they are due again at `until`."""
        with self._lock:
            for lease, part in self._by_lease(ack_ids).items():
                self._schedule(part, lease.received_at, lease.expires_at, until)

    def lose(self, ack_ids: Iterable[str]) -> None:
        """The service has taken them back: they come again, and extending them would be in vain."""
        with self._lock:
            for ack_id in ack_ids:
                lease = self._leases.pop(ack_id, None)
                if lease is not None:
                    lease.leave(1)

    def _by_lease(self, ack_ids: Iterable[str]) -> Mapping[_Lease, list[str]]:
        """By the lease that they have now; they are about to have another one."""
        found: dict[_Lease, list[str]] = {}
        for ack_id in ack_ids:
            lease = self._leases.get(ack_id)
            if lease is not None:
                found.setdefault(lease, []).append(ack_id)
        for lease, part in found.items():
            lease.leave(len(part))
        return found

    def _half(self, now: float, deadline_s: float) -> float:
        """When a lease that lasts from `now` on is extended."""
        jitter = self._random.uniform(-_JITTER, _JITTER)
        return now + deadline_s * (_RENEW_AT + jitter)

    def _schedule(
        self, ack_ids: Sequence[str], received_at: float, expires_at: float, at: float
    ) -> None:
        """Have the ids share a new lease, and extend it then."""
        lease = _Lease(received_at, expires_at, ack_ids, len(ack_ids))
        self._leases.update(dict.fromkeys(ack_ids, lease))
        self._pushed += 1
        heapq.heappush(self._queue, (at, self._pushed, lease))
