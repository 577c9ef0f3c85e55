"""Growing delays with full jitter between attempts.

The library `stamina` does not fit, for three reasons:

- It uses the global random generator. A simulation needs delays that depend on its seed.
- It adds little jitter. Clients that failed together would come back almost together.
- It cannot reset the delay after a healthy run.
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
"""One generator for all delays. Some callers create a `Backoff` for each request, and a generator for each `Backoff`
would cost more than a successful request.
"""


@dataclass(slots=True)
class Backoff:
    """The delays between attempts at one task, in seconds.

    Each delay is random, so that clients that failed together do not retry together. The ceiling of the delays doubles
    with every failure, from `first` up to `longest`. After an attempt that ran for at least `healthy_after` seconds,
    the ceiling is `first` again.

    Source: "Exponential backoff and jitter", AWS Architecture Blog, 2015.
    """

    first: float = 1.0
    longest: float = 60.0
    healthy_after: float = 60.0
    random: Random = _RANDOM
    failures: int = 0

    def next_delay(self, ran_for: float = 0.0) -> float:
        """Return the delay after an attempt that failed `ran_for` seconds after its start."""
        if ran_for >= self.healthy_after:
            self.reset()
        ceiling = min(self.longest, self.first * 2.0 ** min(self.failures, 32))
        self.failures += 1
        return self.random.uniform(0.0, ceiling)

    def reset(self) -> None:
        """Record a success: the next failure counts as the first."""
        self.failures = 0


def is_worth_a_line(failures: int) -> bool:
    """Return whether to log a warning for this failure: for the 1st, 4th, 16th, 64th, … in a row."""
    return failures > 0 and failures & (failures - 1) == 0 and failures.bit_length() % 2 == 1


def warn_seldom(log: FilteringBoundLogger, failures: int, message: str, **fields: Any) -> None:
    """Log a failure: as a warning if `is_worth_a_line` is true for its number, else at level debug."""
    say = log.warning if is_worth_a_line(failures) else log.debug
    say(message, **fields)


async def retry(
    attempt: Callable[[], Awaitable[T]],
    *,
    on: type[E] | tuple[type[E], ...],
    backoff: Backoff,
    on_failure: Callable[[E, float], object],
) -> T:
    """Repeat `attempt` until it succeeds; return its result.

    Args:
        on: The errors after which to try again. Any other error is raised at once.
        on_failure: Called with each error and the seconds until the next attempt; see `log_failure`.
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
    """Return an `on_failure` for `retry` that logs the error and the delay, by `warn_seldom`."""
    failures = 0

    def on_failure(error: Exception, delay: float) -> None:
        nonlocal failures
        failures += 1
        warn_seldom(
            log, failures, message, **fields, error=str(error), retry_after_s=round(delay, 3)
        )

    return on_failure
