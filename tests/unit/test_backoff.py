"""The delays before a failed attempt is repeated (contract, rules 6 and 11)."""

from __future__ import annotations

import asyncio
import random

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog import get_logger
from structlog.testing import capture_logs

from triggerer.backoff import Backoff, log_failure, retry
from triggerer.testing.simulation.kernel.loop import VirtualLoop


class Highest(random.Random):
    """Draws the ceiling."""

    def uniform(self, a: float, b: float) -> float:
        assert a == 0
        return b


@pytest.mark.rule("11: a failed trigger is restarted at growing delays, and shown with its error")
def test_the_ceiling_doubles_up_to_the_longest() -> None:
    backoff = Backoff(first=1, longest=60, random=Highest())
    assert [backoff.next_delay(0) for _ in range(9)] == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_a_run_that_was_healthy_for_long_enough_resets_the_ceiling() -> None:
    backoff = Backoff(first=1, longest=60, healthy_after=60, random=Highest())
    assert [backoff.next_delay(ran_for) for ran_for in (0, 1, 59.9, 60, 0)] == [1, 2, 4, 1, 2]


@pytest.mark.rule("6: the delays before the restarts of a group have full jitter")
@given(st.integers(0, 40), st.integers())
def test_full_jitter_draws_anything_from_nothing_to_the_ceiling(failures: int, seed: int) -> None:
    backoff = Backoff(first=1, longest=60, random=random.Random(seed), failures=failures)
    ceiling = min(60, 2**failures)
    assert 0 <= backoff.next_delay(0) <= ceiling


@pytest.mark.rule("6: the delays before the restarts of a group have full jitter")
def test_those_that_failed_together_do_not_come_back_together() -> None:
    delays = sorted(Backoff(failures=5).next_delay(0) for _ in range(1000))
    # With full jitter, some delays are in each quarter of the range from 0 to the ceiling of 32 s.
    # With a little noise around the ceiling, all delays would be near 32 s.
    for quarter in range(4):
        assert any(quarter * 8 <= delay < (quarter + 1) * 8 for delay in delays)


def test_one_that_works_again_begins_with_the_first_delay() -> None:
    backoff = Backoff(first=1, longest=60, random=Highest())
    assert [backoff.next_delay() for _ in range(3)] == [1, 2, 4]
    backoff.reset()
    assert backoff.next_delay() == 1


class Away(Exception):
    """An error after which the call is tried again."""


class Refused(Exception):
    """An error after which the call is not tried again."""


class Attempts:
    """Raises the given errors, one at each call, and then returns. `called_at` records the times of the calls."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.called_at: list[float] = []

    async def __call__(self) -> str:
        self.called_at.append(anyio.current_time())
        if self.errors:
            raise self.errors.pop(0)
        return "done"


async def run(attempts: Attempts) -> tuple[str, list[tuple[str, float]]]:
    failures: list[tuple[str, float]] = []
    result = await retry(
        attempts,
        on=Away,
        backoff=Backoff(first=1, longest=3, random=Highest()),
        on_failure=lambda error, delay: failures.append((str(error), delay)),
    )
    return result, failures


def test_a_failed_attempt_is_repeated_after_each_delay_until_it_succeeds() -> None:
    loop = VirtualLoop(random.Random(1), 0.0, lambda: None)
    attempts = Attempts(Away("a"), Away("b"), Away("c"))
    result, failures = loop.run_until_complete(run(attempts))
    loop.close()
    assert result == "done"
    assert failures == [("a", 1), ("b", 2), ("c", 3)]
    assert attempts.called_at == pytest.approx([0, 1, 3, 6], abs=0.1)


async def test_another_error_is_raised_at_once() -> None:
    attempts = Attempts(Refused("no"))
    with pytest.raises(Refused, match="no"):
        await run(attempts)
    assert len(attempts.called_at) == 1


async def test_a_cancellation_ends_the_wait_for_the_next_attempt() -> None:
    attempts = Attempts(Away("a"))
    task = asyncio.create_task(run(attempts))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(attempts.called_at) == 1


def test_a_failure_is_logged_with_its_error_and_the_delay() -> None:
    with capture_logs() as logs:
        log_failure(get_logger(), "waiting", run=7)(Away("gone"), 0.12345)
    assert logs == [
        {
            "event": "waiting",
            "run": 7,
            "error": "gone",
            "retry_after_s": 0.123,
            "log_level": "warning",
        }
    ]
