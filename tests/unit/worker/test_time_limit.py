"""The timeout of a task on the main thread."""

import time
from datetime import timedelta

import pytest

from triggerer.worker.failures import TaskTimeout
from triggerer.worker.tasks import time_limit

_SOON = timedelta(seconds=0.05)


def _sleep_and_fail() -> None:
    try:
        time.sleep(10)
    finally:
        raise ValueError("the cleaning failed, too")


def test_the_error_is_the_timeout_even_if_the_tasks_cleaning_fails() -> None:
    with pytest.raises(TaskTimeout, match="did not end within"), time_limit(_SOON):
        _sleep_and_fail()


def test_an_error_before_the_time_is_up_stays_the_error() -> None:
    with pytest.raises(ValueError, match="mine"), time_limit(timedelta(seconds=10)):
        raise ValueError("mine")
