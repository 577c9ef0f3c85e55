"""Timetables in words, for `dags show`."""

from datetime import timedelta
from typing import Any

import pytest

from triggerer.timetables import (
    AnyOf,
    CronDataIntervalTimetable,
    CronPartitionTimetable,
    CronTriggerTimetable,
    Delayed,
    DeltaTriggerTimetable,
)


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("@hourly", "every hour"),
        ("@daily", "at 00:00"),
        ("@weekly", "at 00:00 on Sunday"),
        ("@monthly", "at 00:00 on day 1 of the month"),
        ("@quarterly", "at 00:00 on day 1 of the month in January, April, July and October"),
        ("@yearly", "at 00:00 on day 1 of the month in January"),
        ("30 21 * * 5", "at 21:30 on Friday"),
        ("0 6,18 * * mon-fri", "at 06:00 and 18:00 from Monday to Friday"),
        ("0 9 * * sat,7", "at 09:00 on Saturday and Sunday"),
        ("*/15 * * * *", "every 15 minutes"),
        ("* * * * *", "every minute"),
        ("5,35 * * * *", "every hour at :05 and :35"),
        ("0 */6 * * *", "every 6 hours"),
        ("0 0 L * *", "at 00:00 on the last day of the month"),
        ("0 9 * * mon#2", "at 09:00 on the second Monday of the month"),
        ("0 9 * * L5", "at 09:00 on the last Friday of the month"),
        (
            "0 9 15W 6-8 *",
            "at 09:00 on the weekday nearest to day 15 of the month from June to August",
        ),
    ],
)
def test_a_cron_expression_is_said_in_a_few_words(expression: str, words: str) -> None:
    timetable = CronTriggerTimetable(expression, timezone="Europe/Paris")
    assert timetable.description == f"{words} (Europe/Paris)"


@pytest.mark.parametrize(
    "expression",
    ["0 0 13 * 5", "*/7 * * * *", "* 2 * * *", "0 1-5/2 * * *", "0 0 * * * 30", "0 */5 * * *", "0,30 1,2,3,4 * * *"],
)  # fmt: skip
def test_an_expression_that_takes_many_words_is_quoted(expression: str) -> None:
    timetable = CronTriggerTimetable(expression, timezone="UTC")
    assert timetable.description == f"at the times of cron '{expression}' (UTC)"


def test_the_others_say_what_they_add() -> None:
    daily = CronDataIntervalTimetable("@daily", timezone="UTC")
    assert daily.description == "at 00:00 (UTC), for the time since the previous instant"
    late = Delayed(daily, timedelta(hours=1, minutes=30))
    assert late.description == f"{daily.description}, 1 hour 30 minutes later"
    assert DeltaTriggerTimetable(timedelta(days=1, seconds=1)).description == "every 1 day 1 second"
    noon = CronTriggerTimetable("0 12 * * *", timezone="UTC")
    assert AnyOf(noon, daily).description == f"at 12:00 (UTC), or {daily.description}"
    assert AnyOf(noon, daily).summary == "0 12 * * * or 0 0 * * *"


@pytest.mark.parametrize(
    "kind", [CronTriggerTimetable, CronDataIntervalTimetable, CronPartitionTimetable]
)
def test_a_cron_in_a_column_names_its_zone_unless_that_is_utc(kind: Any) -> None:
    # The times in the next column are in UTC.
    assert kind("0 7 * * *", timezone="Europe/Berlin").summary == "0 7 * * * (Europe/Berlin)"
    assert kind("0 7 * * *", timezone="UTC").summary == "0 7 * * *"
