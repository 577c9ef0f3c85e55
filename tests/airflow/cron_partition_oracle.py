"""Answers of Airflow's `CronPartitionTimetable`. Run by a Python that has Airflow; imports nothing of ours.

Standard input: JSON, a list of cases as `test_cron_partitions.py` makes them. Standard output: for each a list of steps
`[asked, answer]`: `asked` are now and the last run (null, or its moment and its partition's date), `answer` is null,
`{"error": ...}`, or run_after, the partition's date and its key.
"""

import json
import logging
import sys
from datetime import timedelta
from types import SimpleNamespace

from airflow.timetables import base, trigger
from timetable_oracle import CLOCK, STUCK, asking, instant, text

# It would write to standard output.
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
