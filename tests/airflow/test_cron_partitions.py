"""Compares our `CronPartitionTimetable` with Airflow 3.3.2's: successive runs and their partition keys.

Airflow's answers were recorded with `TRIGGERER_AIRFLOW_PYTHON=/tmp/airflow-venv/bin/python .venv/bin/python -m
tests.airflow.test_cron_partitions`. docs/reference/timetables.md explains the differences.
"""

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import time_machine

from tests.airflow.asking import ask_airflow
from tests.airflow.timetable_cases import Cases, clock_changes
from triggerer.domain.timetables.cron.expression import Cron
from triggerer.domain.timetables.zones import checked_zone
from triggerer.errors import DagError
from triggerer.timetables import CronPartitionTimetable, DataInterval, TimeRestriction

HERE = Path(__file__).parent
RECORDED = HERE / "cron_partition_answers.json"
PYTHON = os.environ.get("TRIGGERER_AIRFLOW_PYTHON")
DAY = timedelta(days=1)


def cases(seed: int, number: int) -> list[dict[str, Any]]:
    draw, found = Cases(seed), []
    while len(found) < number:
        case = draw.case(4)
        if case["type"] != "CronTriggerTimetable":
            continue
        offset = draw.random.choice((None, -3, -1, -1, 0, 0, 1, 2))
        try:
            Cron(case["arguments"]["cron"], UTC)
        except DagError:
            continue
        del case["type"], case["last"], case["arguments"]["interval"]
        if not isinstance(case["arguments"]["run_immediately"], bool):
            case["arguments"]["run_immediately"] = True
        case["arguments"] |= {"run_offset": offset, "key_format": "%Y-%m-%dT%H:%M:%S"}
        found.append(case)
    return found


class Comparison:
    """Counts the answers that equal Airflow's, and two known kinds of differences. Any other difference fails the test.

    The known differences: answers may differ near a change of the clocks, and only Airflow creates a partition whose
    date is after the DAG's end.
    """

    def __init__(self) -> None:
        self.equal = self.different = self.beyond_the_end = 0

    def add(self, case: dict[str, Any], steps: list[Any]) -> None:
        for asked, theirs in steps:
            ours = _answer(case, asked)
            if ours == theirs:
                self.equal += 1
            elif ours is None and _is_beyond_the_end(case, theirs):
                self.beyond_the_end += 1
            else:
                assert _is_where_clocks_change(case, asked, ours, theirs), (
                    case,
                    asked,
                    theirs,
                    ours,
                )
                self.different += 1


def _answer(case: dict[str, Any], asked: Any) -> list[str] | None:
    timetable = CronPartitionTimetable(**case["arguments"])
    last = asked[1] and DataInterval.exact(_instant(asked[1][1]))
    restriction = TimeRestriction(
        _instant(case["earliest"]), _instant(case["latest"]), case["catchup"]
    )
    with time_machine.travel(_instant(asked[0]), tick=False):
        info = timetable.next_dagrun_info(
            last_automated_data_interval=last, restriction=restriction
        )
    if info is None:
        return None
    key = timetable.partition_key(info.data_interval)
    return [info.run_after.isoformat(), info.logical_date.isoformat(), key]


def _is_beyond_the_end(case: dict[str, Any], theirs: Any) -> bool:
    return bool(
        case["latest"]
        and isinstance(theirs, list)
        and _instant(theirs[1]) > _instant(case["latest"])
    )


def _is_where_clocks_change(case: dict[str, Any], asked: Any, ours: Any, theirs: Any) -> bool:
    cron = Cron(case["arguments"]["cron"], checked_zone(case["arguments"]["timezone"]))
    texts = [asked[0], *(asked[1] or ()), case["earliest"], case["latest"]]
    texts += [one for answer in (ours, theirs) if isinstance(answer, list) for one in answer[:2]]
    moments = [_instant(one) for one in texts if one is not None]
    low, high = min(moments), max(moments)
    low, high = (cron.before(low) or low) - DAY, (cron.after(high) or high) + DAY
    return any(low <= one <= high for one in clock_changes(case["arguments"]["timezone"]))


def _instant(text: str | None) -> Any:
    return None if text is None else datetime.fromisoformat(text)


def check(asked: list[dict[str, Any]], answers: list[Any]) -> Comparison:
    comparison = Comparison()
    for case, steps in zip(asked, answers, strict=True):
        comparison.add(case, steps)
    return comparison


def test_recorded_chains_have_the_runs_and_keys_of_airflow() -> None:
    pairs = json.loads(RECORDED.read_text())
    assert len(pairs) == 200
    comparison = check([case for case, _ in pairs], [steps for _, steps in pairs])
    assert comparison.equal > 700
    # Differences are possible because half of the cases were drawn near a change of clocks.
    assert comparison.different < 30
    assert comparison.beyond_the_end < 10


def test_the_comparison_sees_another_key() -> None:
    case, steps = json.loads(RECORDED.read_text())[0]
    steps = [[asked, theirs and [*theirs[:2], "2026"]] for asked, theirs in steps]
    case["arguments"]["timezone"] = "UTC"
    with pytest.raises(AssertionError):
        Comparison().add(case, steps)


@pytest.mark.skipif(
    not PYTHON,
    reason="TRIGGERER_AIRFLOW_PYTHON names no Python with Airflow (see docs/reference/airflow-triggers.md)",
)
@pytest.mark.parametrize("seed", range(3))
def test_fresh_chains_have_the_runs_and_keys_of_airflow(seed: int) -> None:
    assert PYTHON is not None
    asked = cases(seed, 500)
    comparison = check(asked, ask_airflow(PYTHON, "cron_partition_oracle.py", asked))
    assert comparison.equal > 30 * comparison.different


if __name__ == "__main__":
    assert PYTHON is not None
    fresh = cases(2026, 200)
    lines = (
        json.dumps(pair, separators=(",", ":"))
        for pair in zip(fresh, ask_airflow(PYTHON, "cron_partition_oracle.py", fresh), strict=True)
    )
    RECORDED.write_text("[\n" + ",\n".join(lines) + "\n]\n")
