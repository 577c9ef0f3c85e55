"""Which slot a run is given to."""

import time
from datetime import timedelta
from typing import Any, cast

import pytest

from triggerer.executor.slots.run_execution import RunServices
from triggerer.executor.slots.slot import Slot
from triggerer.executor.slots.slot_choice import Spark, WarmUp, choose_slot, is_session_near

NONE = cast("Any", None)


def slot(spark: Spark, *, warming_for_s: float = 0.0) -> Slot:
    """A slot that is free, unless it warms up."""
    made = Slot(RunServices(NONE, NONE, timedelta()), NONE, NONE, NONE, NONE)
    if spark is Spark.WARMING:
        made.give(WarmUp())
    made.spark = spark
    made.busy_since = time.monotonic() - warming_for_s
    return made


def test_a_run_waits_for_a_session_that_is_being_opened_rather_than_open_another() -> None:
    slots = [slot(Spark.WARMING, warming_for_s=5), slot(Spark.COLD)]
    assert is_session_near(slots)
    assert choose_slot(slots, needs_spark=True) is None
    assert choose_slot(slots, needs_spark=False) is slots[1]


def test_a_session_that_is_long_in_coming_keeps_no_run_waiting() -> None:
    slots = [slot(Spark.WARMING, warming_for_s=3600), slot(Spark.COLD)]
    assert not is_session_near(slots)
    assert choose_slot(slots, needs_spark=True) is slots[1]


@pytest.mark.parametrize(("needs_spark", "place"), [(True, 1), (False, 0)])
def test_a_warm_session_is_for_runs_that_need_one(needs_spark: bool, place: int) -> None:
    slots = [slot(Spark.COLD), slot(Spark.WARM)]
    assert choose_slot(slots, needs_spark=needs_spark) is slots[place]
