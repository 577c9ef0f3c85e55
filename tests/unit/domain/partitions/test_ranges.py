"""The partition keys of the periods between two instants."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from triggerer.domain.partitions.ranges import keys_between
from triggerer.errors import DagError
from triggerer.partitions import (
    DayWindow,
    FanOutMapper,
    IdentityMapper,
    MonthWindow,
    PartitionMapper,
    RollupMapper,
    StartOfDayMapper,
    StartOfHourMapper,
    StartOfMonthMapper,
    StartOfQuarterMapper,
    StartOfWeekMapper,
    StartOfYearMapper,
)

LATE = datetime(2030, 1, 1, tzinfo=UTC)
STEP = timedelta(minutes=15)


def between(mapper: PartitionMapper, start: datetime, end: datetime) -> list[str]:
    return keys_between([mapper], start, end, now=LATE)


@pytest.mark.parametrize("zone", ["UTC", "Europe/Zurich", "America/St_Johns", "Asia/Kolkata"])
@pytest.mark.parametrize(
    "kind",
    [StartOfHourMapper, StartOfDayMapper, StartOfWeekMapper, StartOfMonthMapper],
)
def test_they_are_those_that_a_walk_over_the_range_meets(
    kind: type[StartOfDayMapper], zone: str
) -> None:
    mapper = kind(timezone=zone)
    start = datetime(2026, 3, 20, 7, 15, tzinfo=UTC)
    end = start + timedelta(days=45)
    met: dict[str, None] = {}
    moment = start
    while moment <= end:
        local = moment.astimezone(ZoneInfo(zone)).replace(tzinfo=None)
        key = str(mapper.to_downstream(local.strftime("%Y-%m-%dT%H:%M:%S")))
        if start <= mapper.to_partition_date(key) <= end:
            met[key] = None
        moment += STEP
    assert between(mapper, start, end) == list(met)


def test_longer_periods_and_both_ends_are_included() -> None:
    start, end = datetime(2024, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)
    assert between(StartOfYearMapper(), start, end) == ["2024", "2025", "2026"]
    assert between(StartOfQuarterMapper(), start, datetime(2024, 7, 1, tzinfo=UTC)) == [
        "2024-Q1",
        "2024-Q2",
        "2024-Q3",
    ]


def test_a_period_that_is_not_over_is_left_out() -> None:
    start, end = datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 31, tzinfo=UTC)
    for now, last in (
        (datetime(2026, 3, 5, tzinfo=UTC), "04"),
        (start + timedelta(hours=30), "01"),
    ):
        found = keys_between([StartOfDayMapper()], start, end, now=now)
        assert found[-1] == f"2026-03-{last}"
    assert (
        keys_between([StartOfDayMapper()], start, end, now=datetime(2020, 1, 1, tzinfo=UTC)) == []
    )


def test_the_keys_are_those_of_the_runs() -> None:
    start = datetime(2026, 3, 1, tzinfo=UTC)
    end = start + timedelta(days=1)
    hours = StartOfDayMapper(input_format="%Y-%m-%dT%H")
    rolled_up = RollupMapper(upstream_mapper=hours, window=DayWindow())
    month = StartOfMonthMapper(input_format="%Y-%m")
    fanned_out = FanOutMapper(upstream_mapper=month, window=MonthWindow())
    both = keys_between([rolled_up, fanned_out], start, end, now=LATE)
    assert both == ["2026-03-01", "2026-03-02"]


def test_an_invalid_range_of_periods_is_refused() -> None:
    start = datetime(2026, 3, 1, tzinfo=UTC)
    with pytest.raises(DagError, match="no periods"):
        between(IdentityMapper(), start, start)
    with pytest.raises(DagError, match="different periods"):
        keys_between([StartOfDayMapper(), StartOfHourMapper()], start, start, now=LATE)
    with pytest.raises(DagError, match="empty"):
        between(StartOfDayMapper(), start, start - timedelta(days=1))
    with pytest.raises(DagError, match="more than"):
        between(StartOfHourMapper(), start - timedelta(days=7_000), start)
