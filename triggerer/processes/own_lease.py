"""A lease as its owner sees it: how long the owner may act, by the owner's own clock.

When a lease has expired by the database's clock, another instance may take it over. A suspended owner, or one without a
database connection, would not notice. So the owner checks its own clock before it acts, and stops some time before the
lease expires (`margin`). The clock is `CLOCK_BOOTTIME`, which also runs while the machine is suspended.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Final, Self

import anyio

from triggerer.synchronization import Notifier

_NEVER: Final = float("inf")


def boottime() -> float:
    """Return the seconds since the machine started, including the time when it was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class OwnLease:
    """How long the owner of a lease may act. Use it on one event loop.

    Args:
        duration: The time from an extension until other instances may take over the lease, by the database's clock.
        margin: The fraction of `duration` by which the owner stops early. This time allows for unfinished work, and for
            clocks that differ in speed.
        clock: Returns seconds. The clock must continue while this process does not run.
    """

    def __init__(
        self, duration: timedelta, *, margin: float, clock: Callable[[], float] = boottime
    ) -> None:
        self.now: Final = clock
        self._usable_s = duration.total_seconds() * (1 - margin)
        self._ends_at = -_NEVER
        self._extended = Notifier()

    @classmethod
    def unlimited(cls) -> Self:
        """Return a lease that never ends. Used where no other instance can take over."""
        lease = cls(timedelta(), margin=0.0, clock=float)
        lease._ends_at = _NEVER
        return lease

    @property
    def is_over(self) -> bool:
        """True if the owner must not act until the next extension. A new lease is over until its first extension."""
        return self.now() >= self._ends_at

    @property
    def ends_at(self) -> float:
        """The end of the lease, in seconds of `clock`."""
        return self._ends_at

    def extend(self, asked_at: float) -> None:
        """Record that the database has extended the lease.

        Args:
            asked_at: The time of `clock` before the request was sent. At the database, the extension begins a little
                later, so the owner never believes that the lease lasts longer than it does.
        """
        self._ends_at = max(self._ends_at, asked_at + self._usable_s)
        self._extended.notify_all()

    async def wait_until_over(self) -> None:
        """Return once the lease is over.

        If the machine is suspended during the wait, the call may return after the end of the lease. The delay is at
        most the time that was left of the lease when the suspension began.
        """
        while (left := self._ends_at - self.now()) > 0:
            with anyio.move_on_after(None if left == _NEVER else left):
                await self._extended.wait()

    async def wait_until_extended(self) -> None:
        """Return once the lease is not over."""
        while self.is_over:
            await self._extended.wait()
