"""Cron in time zones against a walk over every minute."""

import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from tests.airflow.timetable_cases import ZONES, Cases, clock_changes
from tests.unit.domain.timetables.walk import fires_of
from triggerer.domain.timetables.cron.expression import Cron
from triggerer.domain.timetables.zones import checked_zone
from triggerer.errors import DagError

DAY = timedelta(days=1)
FIXED = (
    "30 2 * * *", "0 * * * *", "*/30 * * * *", "0 0 * * *", "15 0,1,2,3 * * *", "*/20 2 * * *", "0 */6 * * *",
    "45 1-3 * * sun", "0 2 29 2 *", "0 0 L * *", "10 * * * sun#1", "0 12 15W * *", "25,40 2 * * *",
)  # fmt: skip


def random_expressions(seed: int, number: int) -> list[str]:
    cases, found = Cases(seed), []
    while len(found) < number:
        fields = cases.cron().split()
        # Leave out expressions without five fields. If both days (of the month and of the week) are set, also leave out
        # marks such as `#` and `W`. Nobody combines these, and croniter has its own rules for them.
        special = (
            any(mark in fields[2] + fields[-1] for mark in "W#L") if len(fields) == 5 else True
        )
        if special and (len(fields) != 5 or (fields[2] != "*" and fields[4] != "*")):
            continue
        try:
            Cron(" ".join(fields), UTC)
        except DagError:
            continue
        found.append(" ".join(fields))
    return found


def check(
    expressions: list[str], zone: str, start: datetime, end: datetime, asks: Iterable[datetime]
) -> int:
    """Compare the whole chain of the stretch, and next and previous from each of `asks`."""
    asked, compared = sorted(asks), 0
    for expression, expected in zip(
        expressions, fires_of(expressions, zone, start, end), strict=True
    ):
        cron, compared = Cron(expression, checked_zone(zone)), compared + len(expected)
        chain, moment = [], start - timedelta(microseconds=1)
        while (moment := cron.after(moment)) is not None and moment <= end:
            chain.append(moment)
        assert chain == expected, (expression, zone)
        for before, after in pairwise(expected):
            assert cron.before(after) == before, (expression, zone)
        for moment in asked:
            at = bisect_right(expected, moment)
            if at < len(expected):
                assert cron.after(moment) == expected[at], (expression, zone, moment)
            if (at := bisect_left(expected, moment)) > 0:
                assert cron.before(moment) == expected[at - 1], (expression, zone, moment)
            here = moment in expected
            assert cron.matches(moment) == here, (expression, zone, moment)
    return compared


@pytest.mark.full
@pytest.mark.rule("a timetable's next instant is not later, or disagrees with its previous one")
@pytest.mark.parametrize("zone", ZONES)
def test_next_is_strictly_later_and_agrees_with_previous_and_with_match_where_clocks_change(
    zone: str,
) -> None:
    draw = random.Random(zone)
    changes = clock_changes(zone) or (datetime(2026, 3, 29, tzinfo=UTC),)
    for number, change in enumerate(draw.sample(changes, min(2, len(changes)))):
        start, end = change - DAY, change + DAY
        nearby = [change + timedelta(minutes=n) for n in range(-130, 131, 7)]
        expressions = [*draw.sample(FIXED, 3), *random_expressions(number, 2)]
        check(expressions, zone, start, end, [one for one in nearby if start <= one <= end])


@pytest.mark.full
def test_three_weeks_of_every_expression_on_ordinary_days() -> None:
    start = datetime(2028, 2, 20, tzinfo=UTC)
    compared = check(
        [*FIXED, *random_expressions(7, 25)],
        "Asia/Kolkata",
        start,
        start + 20 * DAY,
        [start + timedelta(hours=5.3) * n for n in range(85)],
    )
    assert compared > 5_000


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("zone", ZONES)
def test_thirty_years_of_minutes(zone: str) -> None:
    start, end = datetime(1998, 1, 1, tzinfo=UTC), datetime(2028, 1, 1, tzinfo=UTC)
    draw = random.Random(zone)
    asks = [start + timedelta(minutes=draw.randrange(30 * 365 * 1440)) for _ in range(1000)]
    asks += [change + timedelta(minutes=n) for change in clock_changes(zone) for n in range(-90, 91, 10)
             if start < change < end]  # fmt: skip
    rare = [one for one in random_expressions(11, 200) if one.split()[0] not in ("*", "*/2")][:2]
    check([*FIXED[:2], "0 2 29 2 *", *rare], zone, start, end, asks)
