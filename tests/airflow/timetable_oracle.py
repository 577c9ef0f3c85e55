"""Prints the answers of Airflow's timetables to test cases.

The program runs with a Python that has Airflow, and without our packages. It reads a JSON list of cases from standard
input (see `timetable_cases.py`), and prints a JSON list with the steps of each case. A step is `[asked, answer]`:

- `asked` is `[now, last data interval]`. The last data interval may be null.
- `answer` is null, `{"error": ...}`, or `[run_after, start, end]`, with the start and end of the data interval.

The last step is followed by the data interval of a manual run at the case's `now`.
"""

import json
import logging
import sys
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pendulum
from airflow.timetables import base, events, interval, simple, trigger

STUCK = timedelta(hours=6)


class Clock:
    now = datetime(2026, 1, 1, tzinfo=UTC)

    def utcnow(self):
        return self.now


CLOCK = Clock()
# Replace every clock that these modules read.
interval.utcnow = trigger.utcnow = CLOCK.utcnow
simple.timezone = events.timezone = SimpleNamespace(
    utcnow=CLOCK.utcnow, coerce_datetime=simple.timezone.coerce_datetime
)
trigger.time = SimpleNamespace(time=lambda: CLOCK.utcnow().timestamp())


def instant(text):
    return None if text is None else pendulum.instance(datetime.fromisoformat(text))


def text(moment):
    return moment.astimezone(UTC).isoformat()


def timetable_of(kind, arguments):
    arguments = dict(arguments)
    for name in ("interval", "delta", "run_immediately"):
        if isinstance(arguments.get(name), (int, float)) and not isinstance(arguments[name], bool):
            arguments[name] = timedelta(seconds=arguments[name])
    if kind == "EventsTimetable":
        arguments["event_dates"] = list(map(instant, arguments["event_dates"]))
    if kind == "CronDataIntervalTimetable":
        return interval.CronDataIntervalTimetable(arguments["cron"], arguments["timezone"])
    if kind == "MultipleCronTriggerTimetable":
        return trigger.MultipleCronTriggerTimetable(*arguments.pop("crons"), **arguments)
    home = next(one for one in (interval, trigger, simple, events) if hasattr(one, kind))
    return getattr(home, kind)(**arguments)


def asking(ask):
    try:
        return ask()
    except Exception as error:  # noqa: BLE001  (it is the answer)
        return {"error": f"{type(error).__name__}: {error}"}


def answers(case):
    CLOCK.now = instant(case["now"])
    timetable = timetable_of(case["type"], case["arguments"])
    last = case["last"] and base.DataInterval(*map(instant, case["last"]))
    restriction = base.TimeRestriction(
        instant(case["earliest"]), instant(case["latest"]), case["catchup"]
    )
    steps = []
    manual = asking(lambda: timetable.infer_manual_data_interval(run_after=CLOCK.now))
    for delay_s in case["delays"]:
        asked = [text(CLOCK.now), last and list(map(text, last))]
        info = asking(
            lambda last=last: timetable.next_dagrun_info(
                last_automated_data_interval=last, restriction=restriction
            )
        )
        if not isinstance(info, base.DagRunInfo):
            steps.append([asked, info])
            CLOCK.now += STUCK
            continue
        steps.append([asked, [text(info.run_after), *map(text, info.data_interval)]])
        last = info.data_interval
        CLOCK.now = max(CLOCK.now, info.run_after) + timedelta(seconds=delay_s)
    return [*steps, manual if isinstance(manual, dict) else list(map(text, manual))]


if __name__ == "__main__":
    logging.disable()
    json.dump([answers(case) for case in json.load(sys.stdin)], sys.stdout)
