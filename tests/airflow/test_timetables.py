"""Compares our timetables with Airflow 3.3.2's, in thousands of series of runs under a frozen clock.

Airflow's answers are in `timetable_answers.json`. This command asks an installed Airflow, and records the answers:

    TRIGGERER_AIRFLOW_PYTHON=/tmp/airflow-venv/bin/python .venv/bin/python -m tests.airflow.test_timetables

docs/reference/timetables.md explains the differences.
"""

import os
from datetime import UTC, datetime

import pytest

from tests.airflow.asking import ask_airflow
from tests.airflow.timetable_cases import Cases
from tests.airflow.timetable_comparison import RECORDED, Comparison, record, recorded
from triggerer.timetables import CronTriggerTimetable

PYTHON = os.environ.get("TRIGGERER_AIRFLOW_PYTHON")
needs_airflow = pytest.mark.skipif(
    not PYTHON,
    reason="TRIGGERER_AIRFLOW_PYTHON names no Python with Airflow (see docs/reference/airflow-triggers.md)",
)


def test_a_thousand_recorded_chains_are_answered_as_by_airflow() -> None:
    cases, answers = recorded()
    assert len(cases) == 1000
    assert RECORDED.stat().st_size < 1_000_000
    comparison = Comparison()
    for case, answer in zip(cases, answers, strict=True):
        comparison.add(case, answer)
    assert comparison.equal > 4900
    # Differences are possible because half of the cases were drawn near a change of clocks.
    assert comparison.share < 0.015, comparison.different


def test_the_comparison_sees_an_answer_that_is_an_hour_off() -> None:
    case = {
        "type": "CronTriggerTimetable",
        "arguments": {"cron": "@daily", "timezone": "Asia/Kolkata"},
        "now": "2026-03-10T00:00:00+00:00", "last": None, "earliest": None, "latest": None,
        "catchup": False, "delays": [0],
    }  # fmt: skip
    moment = CronTriggerTimetable("@daily", timezone="Asia/Kolkata").infer_manual_data_interval(
        run_after=datetime(2026, 3, 10, tzinfo=UTC)
    )
    manual = [one.isoformat() for one in moment]
    right, wrong = "2026-03-10T18:30:00+00:00", "2026-03-10T19:30:00+00:00"
    comparison = Comparison()
    comparison.add(case, [[[case["now"], None], [right] * 3], manual])
    assert (comparison.equal, comparison.share) == (2, 0)
    with pytest.raises(AssertionError):
        comparison.add(case, [[[case["now"], None], [wrong] * 3], manual])


@needs_airflow
@pytest.mark.parametrize("seed", range(102, 104))
def test_a_thousand_fresh_chains_are_answered_as_by_airflow(seed: int) -> None:
    assert PYTHON is not None
    cases = Cases(seed).draw(1000)
    comparison = Comparison()
    for case, answer in zip(cases, ask_airflow(PYTHON, "timetable_oracle.py", cases), strict=True):
        comparison.add(case, answer)
    assert comparison.share < 0.015, comparison.different


if __name__ == "__main__":
    assert PYTHON is not None
    fresh = Cases(2026).draw(1000, steps=4)
    record(fresh, ask_airflow(PYTHON, "timetable_oracle.py", fresh))
