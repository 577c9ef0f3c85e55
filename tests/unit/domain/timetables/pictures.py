"""Draws the pictures of docs/reference/timetables.md and partitions.md from the answers of timetables.

To draw the pictures again, run `.venv/bin/python -m tests.unit.domain.timetables.pictures`.
"""

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo

import time_machine

from tests.unit.domain.timetables.asset_pictures import AssetPicture
from tests.unit.domain.timetables.partition_pictures import PartitionPicture
from triggerer.domain.assets import Asset
from triggerer.domain.schedules import OnAssets, OnBoth, OnEither
from triggerer.partitions import (
    DayWindow,
    FanOutMapper,
    FixedKeyMapper,
    QuarterWindow,
    RollupMapper,
    SegmentWindow,
    StartOfDayMapper,
    StartOfQuarterMapper,
    WaitUntil,
)
from triggerer.timetables import (
    AfterWorkdayTimetable,
    AllOf,
    AnyOf,
    Consecutive,
    ContinuousTimetable,
    CronDataIntervalTimetable,
    CronPartitionTimetable,
    CronTriggerTimetable,
    DagRunInfo,
    DataInterval,
    Delayed,
    DeltaDataIntervalTimetable,
    DeltaTriggerTimetable,
    EventsTimetable,
    Except,
    ExceptDays,
    Keyed,
    MultipleCronTriggerTimetable,
    OnceTimetable,
    PartitionedAssetTimetable,
    RollingWindow,
    RollUp,
    TimeRestriction,
    Timetable,
    WorkdaysOfMonthTimetable,
)

REFERENCE = Path(__file__).resolve().parents[4] / "docs" / "reference"
PAGE, PARTITIONS = PAGES = (REFERENCE / "timetables.md", REFERENCE / "partitions.md")
HOUR, DAY, PARIS = timedelta(hours=1), timedelta(days=1), ZoneInfo("Europe/Paris")
_BLOCK = re.compile(r"<!-- picture: ([\w-]+) -->\n```\n.*?```\n", re.DOTALL)


@dataclass(frozen=True)
class Picture:
    timetable: Timetable
    start: datetime
    column: timedelta = timedelta(hours=2)
    days: float = 4
    tick: timedelta = DAY
    label: str = "%a %-d"
    zone: tzinfo = UTC
    catchup: bool = True
    now: tuple[timedelta, ...] = ()
    """When the scheduler asks, counted from the start; (): at each run."""
    has_start: bool = True

    def draw(self) -> str:
        end = self.start + self.days * DAY
        width = round((end - self.start) / self.column) + 1
        axis, labels = ["·"] * width, [" "] * (width + 12)
        moment = self.start
        while moment <= end:
            at = self._place(moment)
            axis[at] = "|"
            text = moment.astimezone(self.zone).strftime(self.label)
            labels[at : at + len(text)] = text
            moment += self.tick
        rows = ["".join(labels).rstrip(), "".join(axis)]
        return "\n".join([*rows, *map(self._row, self._runs(end))]) + "\n"

    def _row(self, info: DagRunInfo) -> str:
        first, last = (self._place(one) for one in info.data_interval)
        due = self._place(info.run_after)
        cells = [" "] * (max(first, last, due, 0) + 1)
        for place in range(max(first, 0), last):
            cells[place] = "="
        if 0 <= first < last:
            cells[first] = "["
        if first < last < due:
            cells[last] = "]"
        if due <= first < last:
            cells[last] = "]"
        cells[due] = "^"
        key = self.timetable.partition_key(info.data_interval)
        return "".join(cells) if key is None else f"{''.join(cells)} {key}"

    def _place(self, moment: datetime) -> int:
        return round((moment - self.start) / self.column)

    def _runs(self, end: datetime) -> list[DagRunInfo]:
        last: DataInterval | None = None
        found: list[DagRunInfo] = []
        asked, now = list(self.now), self.start
        earliest = self.start if self.has_start else None
        restriction = TimeRestriction(earliest, None, self.catchup)
        while len(found) < 12:
            if self.now:
                if not asked:
                    break
                now = self.start + asked.pop(0)
            with time_machine.travel(now, tick=False):
                info = self.timetable.next_dagrun_info(
                    last_automated_data_interval=last, restriction=restriction
                )
            if info is None or info.run_after > end:
                break
            found.append(info)
            last, now = info.data_interval, max(now, info.run_after)
        return found


def cron(expression: str, zone: str = "UTC") -> CronTriggerTimetable:
    return CronTriggerTimetable(expression, timezone=zone)


MONDAY = datetime(2026, 3, 9, tzinfo=UTC)
MAY, HALVES = datetime(2026, 5, 10, tzinfo=UTC), WorkdaysOfMonthTimetable(15, -1, timezone="UTC")
DAILY = CronDataIntervalTimetable("@daily", timezone="UTC")
AFTER_A_PAUSE = (DAY * 0, DAY * 3 + 5 * HOUR, DAY * 3 + 6 * HOUR)
WEEKS = {"column": timedelta(hours=6), "days": 14, "tick": 7 * DAY}
MONTHS = {"column": DAY, "days": 61, "tick": 14 * DAY, "label": "%b %-d"}
SPRING = datetime(2026, 3, 28, 22, tzinfo=UTC)
AUTUMN = datetime(2026, 10, 24, 21, tzinfo=UTC)
NIGHT = {
    "column": timedelta(minutes=10),
    "days": 6 / 24,
    "tick": HOUR,
    "label": "%H:%M",
    "zone": PARIS,
}

A, B = Asset(name="a"), Asset(name="b")
ARRIVALS = tuple(
    (hours * HOUR, name)
    for hours, name in ((4, "a"), (10, "b"), (34, "a"), (40, "a"), (56, "b"), (74, "a"), (80, "b"))
)
SIX = cron("0 6 * * *")

KEYED = tuple(
    (hours * HOUR, name, key)
    for hours, name, key in (
        (4, "a", "x"), (10, "a", "y"), (34, "b", "y"), (40, "b", "x"), (56, "b", "y"), (74, "a", "x"),
    )
)  # fmt: skip
BOTH_PARTS = RollupMapper(
    upstream_mapper=FixedKeyMapper("all"),
    window=SegmentWindow(["x", "y"]),
    wait_policy=WaitUntil(12 * HOUR),
)
PARTS = ((4, "a", "x"), (34, "a", "y"))
BY_KEY = PartitionedAssetTimetable(assets=A & B)
IN_PARTS = PartitionedAssetTimetable(assets=A, default_partition_mapper=BOTH_PARTS)
QUARTERS = StartOfQuarterMapper(input_format="%Y-Q{quarter}")
INTO_MONTHS = PartitionedAssetTimetable(
    assets=A,
    default_partition_mapper=FanOutMapper(upstream_mapper=QUARTERS, window=QuarterWindow()),
)

HOURS = CronPartitionTimetable("@hourly", timezone="UTC", run_offset=-1, key_format="%Y-%m-%dT%H")
DAY_OF_HOURS = RollupMapper(
    upstream_mapper=StartOfDayMapper(input_format="%Y-%m-%dT%H"), window=DayWindow()
)


def hour_events() -> list[tuple[timedelta, str, str]]:
    """Return 24 events: one for each run of the timetable `HOURS` in a day.

    An event is (the run's time since `MONDAY`, the asset, the run's partition key).
    """
    found, last = [], DataInterval(MONDAY - HOUR, MONDAY)
    for _ in range(24):
        info = HOURS.next_dagrun_info(
            last_automated_data_interval=last, restriction=TimeRestriction(MONDAY, None, True)
        )
        assert info is not None
        last = info.data_interval
        found.append((info.run_after - MONDAY, "a", HOURS.partition_key(last)))
    return found


PICTURES: dict[str, Picture | AssetPicture | PartitionPicture] = {
    "hours-to-a-day": PartitionPicture(
        PartitionedAssetTimetable(assets=A, default_partition_mapper=DAY_OF_HOURS),
        (A,), hour_events(), MONDAY, column=timedelta(minutes=20), days=1, letters=2,
    ),
    "cron-partition": Picture(CronPartitionTimetable("@daily", timezone="UTC", key_format="%Y-%m-%d"), MONDAY),
    "cron-partition-ended": Picture(
        CronPartitionTimetable("@daily", timezone="UTC", run_offset=-1, key_format="%Y-%m-%d"), MONDAY),
    "keyed": Picture(
        Keyed(AfterWorkdayTimetable(timezone="UTC"), timezone="UTC", key_format="%Y-%m-%d"), MONDAY + 3 * DAY),
    "partitions": PartitionPicture(BY_KEY, (A, B), KEYED, MONDAY),
    "partitions-roll-up": PartitionPicture(IN_PARTS, (A,), tuple((n * HOUR, *one) for n, *one in PARTS), MONDAY),
    "partitions-fan-out": PartitionPicture(
        INTO_MONTHS, (A,), ((10 * HOUR, "a", "2026-Q1"), (56 * HOUR, "a", "2026-Q2")), MONDAY,
        letters=7,
    ),
    "assets-all": AssetPicture(OnAssets(A & B), (A, B), ARRIVALS, MONDAY),
    "assets-any": AssetPicture(OnAssets(A | B), (A, B), ARRIVALS, MONDAY),
    "assets-or-time": AssetPicture(OnEither(SIX, A & B), (A, B), ARRIVALS, MONDAY),
    "assets-and-time": AssetPicture(OnBoth(cron("0 18 * * *"), A & B), (A, B), ARRIVALS, MONDAY),
    "cron-trigger": Picture(cron("0 6 * * *"), MONDAY),
    "cron-trigger-interval": Picture(CronTriggerTimetable("0 6 * * *", timezone="UTC", interval=18 * HOUR), MONDAY),
    "cron-interval": Picture(CronDataIntervalTimetable("0 6 * * *", timezone="UTC"), MONDAY),
    "several-crons": Picture(MultipleCronTriggerTimetable("0 6 * * *", "0 18 * * mon,wed", timezone="UTC"), MONDAY),
    "delta-trigger": Picture(DeltaTriggerTimetable(20 * HOUR), MONDAY),
    "delta-interval": Picture(DeltaDataIntervalTimetable(20 * HOUR), MONDAY),
    "events": Picture(EventsTimetable([MONDAY + 10 * HOUR, MONDAY + 3 * DAY, MONDAY + 30 * HOUR]), MONDAY),
    "once": Picture(OnceTimetable(), MONDAY),
    "continuous": Picture(ContinuousTimetable(), MONDAY, now=(6 * HOUR, 20 * HOUR, 30 * HOUR, 70 * HOUR, 80 * HOUR)),
    "pause-catchup": Picture(DAILY, MONDAY, now=(*AFTER_A_PAUSE, *AFTER_A_PAUSE[2:])),
    "pause-no-catchup": Picture(DAILY, MONDAY, catchup=False, now=AFTER_A_PAUSE),
    "pause-roll-up": Picture(RollUp(cron("@daily")), MONDAY, catchup=False, now=AFTER_A_PAUSE),
    "after-workday": Picture(AfterWorkdayTimetable(timezone="UTC", holidays=[date(2026, 3, 18)]), MONDAY, **WEEKS),
    "month": Picture(HALVES, MAY, **MONTHS),
    "consecutive": Picture(Consecutive(HALVES), MAY, **MONTHS),
    "delayed": Picture(Delayed(DAILY, 8 * HOUR), MONDAY),
    "rolling": Picture(RollingWindow(cron("@daily"), 2 * DAY), MONDAY),
    "any-of": Picture(AnyOf(cron("0 6 * * *"), cron("0 */18 * * *")), MONDAY),
    "all-of": Picture(AllOf(cron("0 6 13 * *"), cron("0 6 * * fri")), MONDAY, **WEEKS),
    "except": Picture(Except(cron("0 6 * * *"), cron("* * * * sat,sun")), MONDAY, **WEEKS),
    "except-days": Picture(ExceptDays(cron("0 6 * * *"), [date(2026, 3, 11)], timezone="UTC"), MONDAY),
    "gap-daily": Picture(cron("30 2 * * *", "Europe/Paris"), SPRING, **NIGHT),
    "gap-hourly": Picture(cron("0 * * * *", "Europe/Paris"), SPRING, **NIGHT),
    "overlap-daily": Picture(cron("30 2 * * *", "Europe/Paris"), AUTUMN, **NIGHT),
    "overlap-hourly": Picture(cron("0 * * * *", "Europe/Paris"), AUTUMN, **NIGHT),
}  # fmt: skip


def drawn(page: str) -> str:
    """Return the page with each picture as it is drawn now."""
    return _BLOCK.sub(
        lambda one: f"<!-- picture: {one[1]} -->\n```\n{PICTURES[one[1]].draw()}```\n", page
    )


def names_on(page: str) -> list[str]:
    return [one[1] for one in _BLOCK.finditer(page)]


if __name__ == "__main__":
    for one in PAGES:
        one.write_text(drawn(one.read_text()))
