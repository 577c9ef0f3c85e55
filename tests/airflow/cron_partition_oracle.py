"""Prints the answers of Airflow's `CronPartitionTimetable` to test cases.

The program runs with a Python that has Airflow, and without our packages. It reads a JSON list of cases from standard
input (see `test_cron_partitions.py`), and prints a JSON list with the steps of each case. A step is `[asked, answer]`:

- `asked` is `[now, last run]`. The last run is null, or `[run_after, partition date]`.
- `answer` is null, `{"error": ...}`, or `[run_after, partition date, partition key]`.
"""

import json
import logging
import sys
from datetime import timedelta
from types import SimpleNamespace

from airflow.timetables import base, trigger
from timetable_oracle import CLOCK, STUCK, asking, instant, text

# The module's logger would write to standard output, between the answers.
trigger.log = SimpleNamespace(info=lambda *_, **__: None)


def answers(case):
    CLOCK.now = instant(case["now"])
    timetable = trigger.CronPartitionTimetable(**case["arguments"])
    restriction = base.TimeRestriction(
        instant(case["earliest"]), instant(case["latest"]), case["catchup"]
    )
    last, steps = None, []
    for delay_s in case["delays"]:
        asked = [text(CLOCK.now), last and [text(last.run_after), text(last.partition_date)]]
        info = asking(
            lambda last=last: timetable.next_dagrun_info_v2(
                last_dagrun_info=last, restriction=restriction
            )
        )
        if not isinstance(info, base.DagRunInfo):
            steps.append([asked, info])
            CLOCK.now += STUCK
            continue
        steps.append([asked, [text(info.run_after), text(info.partition_date), info.partition_key]])
        last = info
        CLOCK.now = max(CLOCK.now, info.run_after) + timedelta(seconds=delay_s)
    return steps


if __name__ == "__main__":
    logging.disable()
    json.dump([answers(case) for case in json.load(sys.stdin)], sys.stdout)
