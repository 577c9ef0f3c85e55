"""A lease as its owner sees it: until when it may act, by a clock of its own.

Others take a lease over when it has expired by the database's clock. Its owner may be unable to ask the database, or
may not run at all for a while: stopped, suspended, or held up by a call that blocks. So it looks at its own clock
before it acts, and stops a margin earlier. The clock is `CLOCK_BOOTTIME`: it also counts a suspended machine's time.
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
    """Seconds since the machine started, those included in which it was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class OwnLease:
    """Until when its owner may act. For one event loop.

    Args:
        duration: How long others leave it alone after an extension, by the database's clock.
        margin: The fraction of it that is left to them: for what is under way, and for clocks that differ in speed.
        clock: Seconds; it must go on while this process does not run.
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
        """One that is never over, where nobody else can exist."""
        lease = cls(timedelta(), margin=0.0, clock=float)
        lease._ends_at = _NEVER
        return lease

    @property
    def is_over(self) -> bool:
        """Whether its owner may act no more, until it is extended. It is over until the first extension."""
        return self.now() >= self._ends_at

    @property
    def ends_at(self) -> float:
        """By its clock."""
        return self._ends_at

    def extend(self, asked_at: float) -> None:
        """The database has extended it.

        Args:
            asked_at: The time by its clock before the request was sent: the database began to count after that.
        """
        self._ends_at = max(self._ends_at, asked_at + self._usable_s)
        self._extended.notify_all()

    async def wait_until_over(self) -> None:
        """Return once it is over. After a suspension of the machine that may take as long as was left before it."""
        while (left := self._ends_at - self.now()) > 0:
            with anyio.move_on_after(None if left == _NEVER else left):
                await self._extended.wait()

    async def wait_until_extended(self) -> None:
        """Return once it is not over."""
        while self.is_over:
            await self._extended.wait()
