"""Growing delays with full jitter before whatever failed is tried again.

Not `stamina`: it draws from the global generator, so a simulated seed would not decide its delays; its jitter is added
to the delay, so what failed together still comes back close together; and it has no reset after a healthy run, which
most of our loops need.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

T = TypeVar("T")
E = TypeVar("E", bound=Exception)

_RANDOM: Final = Random()
"""Shared: to seed one costs more than what it is made for, a request that succeeds."""


@dataclass(slots=True)
class Backoff:
    """The delays between the attempts at one thing, in seconds.

    Each delay is drawn between zero and a ceiling that doubles with every failure, up to `longest`: those that failed
    together do not come back together. A run of `healthy_after` seconds or more resets the ceiling.

    Source: "Exponential backoff and jitter", AWS Architecture Blog, 2015.
    """

    first: float = 1.0
    longest: float = 60.0
    healthy_after: float = 60.0
    random: Random = _RANDOM
    failures: int = 0

    def next_delay(self, ran_for: float = 0.0) -> float:
        """The delay after a failure that came `ran_for` seconds after the start."""
        if ran_for >= self.healthy_after:
            self.reset()
        ceiling = min(self.longest, self.first * 2.0 ** min(self.failures, 32))
        self.failures += 1
        return self.random.uniform(0.0, ceiling)

    def reset(self) -> None:
        """It works again: the next failure is the first."""
        self.failures = 0


def is_worth_a_line(failures: int) -> bool:
    """Whether the so-manieth failure in a row (1: the first) is to be warned of: the 1st, 4th, 16th, 64th, ...

    With growing delays between attempts, the lines come at growing distances.
    """
    return failures > 0 and failures & (failures - 1) == 0 and failures.bit_length() % 2 == 1


def warn_seldom(log: FilteringBoundLogger, failures: int, message: str, **fields: Any) -> None:
    """Warn of a failure if it `is_worth_a_line`; the others are for those who ask for "debug"."""
    say = log.warning if is_worth_a_line(failures) else log.debug
    say(message, **fields)


async def retry(
    attempt: Callable[[], Awaitable[T]],
    *,
    on: type[E] | tuple[type[E], ...],
    backoff: Backoff,
    on_failure: Callable[[E, float], object],
) -> T:
    """Repeat `attempt` until it does not raise `on`; return its result.

    Args:
        on: Any other error is raised at once.
        on_failure: Called after each failed attempt with its error and the seconds until the next, as `log_failure`.
    Cancellation: Ends the attempt, or the wait for the next one.
    """
    while True:
        try:
            return await attempt()
        except on as error:
            delay = backoff.next_delay()
            on_failure(error, delay)
        await anyio.sleep(delay)


def log_failure(
    log: FilteringBoundLogger, message: str, **fields: Any
) -> Callable[[Exception, float], object]:
    """Make an `on_failure` that warns, ever more seldom, of failures in a row, with the error and the delay."""
    failures = 0

    def on_failure(error: Exception, delay: float) -> None:
        nonlocal failures
        failures += 1
        warn_seldom(
            log, failures, message, **fields, error=str(error), retry_after_s=round(delay, 3)
        )

    return on_failure
