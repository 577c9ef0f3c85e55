"""The delays before restarts (contract, rules 6 and 11)."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from triggerer.runtime.backoff import Backoff


class Highest(random.Random):
    """Draws the ceiling."""

    def uniform(self, a: float, b: float) -> float:
        assert a == 0
        return b


def test_the_ceiling_doubles_up_to_the_longest() -> None:
    backoff = Backoff(first=1, longest=60, random=Highest())
    assert [backoff.next_delay(0) for _ in range(9)] == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_a_run_that_was_healthy_for_long_enough_resets_the_ceiling() -> None:
    backoff = Backoff(first=1, longest=60, healthy_after=60, random=Highest())
    assert [backoff.next_delay(ran_for) for ran_for in (0, 1, 59.9, 60, 0)] == [1, 2, 4, 1, 2]


@given(st.integers(0, 40), st.integers())
def test_full_jitter_draws_anything_from_nothing_to_the_ceiling(failures: int, seed: int) -> None:
    backoff = Backoff(first=1, longest=60, random=random.Random(seed), failures=failures)
    ceiling = min(60, 2**failures)
    assert 0 <= backoff.next_delay(0) <= ceiling


def test_those_that_failed_together_do_not_come_back_together() -> None:
    delays = sorted(Backoff(failures=5).next_delay(0) for _ in range(1000))
    # Full jitter, not a little noise on top of the ceiling: every quarter of the range is used.
    for quarter in range(4):
        assert any(quarter * 8 <= delay < (quarter + 1) * 8 for delay in delays)
