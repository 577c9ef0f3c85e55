"""When an executor sweeps."""

from __future__ import annotations

from datetime import timedelta

import pytest

from triggerer.errors import StoreUnavailable
from triggerer.executor.sweep import SweepSchedule


@pytest.fixture
def now() -> list[float]:
    return [100.0]


@pytest.fixture
def schedule(now: list[float]) -> SweepSchedule:
    return SweepSchedule(timedelta(seconds=10), lambda: now[0])


def test_it_is_due_at_first_and_regularly(schedule: SweepSchedule, now: list[float]) -> None:
    assert schedule.wait_s == 0.0
    with schedule.sweeping():
        now[0] += 3.0
    assert schedule.wait_s == 7.0
    now[0] += 8.0
    assert schedule.wait_s == 0.0


def test_it_is_due_at_once_where_it_is_asked_for_also_while_one_is_made(
    schedule: SweepSchedule,
) -> None:
    with schedule.sweeping():
        schedule.ask()
    assert schedule.wait_s == 0.0
    with schedule.sweeping():
        pass
    assert schedule.wait_s == 10.0
    schedule.ask()
    assert schedule.wait_s == 0.0


def test_it_is_made_soon_unless_it_is_due_sooner(schedule: SweepSchedule, now: list[float]) -> None:
    with schedule.sweeping():
        schedule.ask_soon()
    assert schedule.wait_s == 1.0
    now[0] += 0.6
    schedule.ask_soon()
    assert schedule.wait_s == pytest.approx(0.4)
    now[0] += 0.4
    assert schedule.wait_s == 0.0


def test_one_that_failed_is_due_again(schedule: SweepSchedule) -> None:
    with pytest.raises(StoreUnavailable), schedule.sweeping():
        raise StoreUnavailable("it is away")
    assert schedule.wait_s == 0.0
