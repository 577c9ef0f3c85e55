"""Makes a run at each instant of a cron expression. The run's partition key is made from its data interval."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta, tzinfo
from typing import Any, Final

from triggerer.domain.timetables._triggers import next_tick
from triggerer.domain.timetables.base import (
    DagRunInfo,
    DataInterval,
    TimeRestriction,
    checked_instant,
    in_utc,
)
from triggerer.domain.timetables.cron.triggers import CronTriggerTimetable
from triggerer.domain.timetables.interval_keys import DEFAULT_KEY_FORMAT, IntervalKeys
from triggerer.domain.timetables.ticks import HasTicks
from triggerer.errors import DagError

MOST_OFFSET: Final = 500


@dataclass(frozen=True, slots=True)
class CronPartitionTimetable(HasTicks):
    """A run at each instant of the expression. Its data interval is one partition: the time between two instants.

    The partition key shows the interval's start, in `timezone`. The run's events get this key too.

    Args:
        run_offset: The number of instants of the expression from the run to the start of its partition. -1: the
            partition ends at the run. 0 or None: the partition starts at the run.
        run_immediately: See `CronTriggerTimetable`.
        key_format: A format of `strftime` for the partition's start. It may also contain `{quarter}`. With `%z`, two
            runs in an hour that the clock shows twice have different keys.
    Raises:
        DagError: An argument is invalid.
    """

    cron: str
    timezone: tzinfo | str | int = field(kw_only=True)
    run_offset: int | None = field(kw_only=True, default=0)
    run_immediately: bool | timedelta = field(kw_only=True, default=False)
    key_format: str = field(kw_only=True, default=DEFAULT_KEY_FORMAT)
    _runs: CronTriggerTimetable = field(init=False, repr=False, compare=False)
    _keys: IntervalKeys = field(init=False, repr=False, compare=False)

    partitioned = True

    def __post_init__(self) -> None:
        runs = CronTriggerTimetable(
            self.cron, timezone=self.timezone, run_immediately=self.run_immediately
        )
        for name in ("cron", "timezone", "run_immediately"):
            object.__setattr__(self, name, getattr(runs, name))
        object.__setattr__(self, "run_offset", _checked_offset(self.run_offset))
        object.__setattr__(self, "_runs", runs)
        object.__setattr__(self, "_keys", IntervalKeys(self.key_format, runs.zone))

    @property
    def description(self) -> str:  # type: ignore[override]
        return f"{self._runs.description}, for the partition {_offset_text(self._offset)}"

    @property
    def keys(self) -> IntervalKeys:
        """The object that writes the partition keys, and reads them."""
        return self._keys

    @property
    def summary(self) -> str:
        return self._runs.summary

    def next_dagrun_info(
        self,
        *,
        last_automated_data_interval: DataInterval | None,
        restriction: TimeRestriction,
    ) -> DagRunInfo | None:
        last, restriction = in_utc(last_automated_data_interval, restriction)
        made = None if last is None else DataInterval.exact(self._run_of(last.start))
        run = next_tick(self, made, restriction, first=self._runs.first, interval=timedelta(0))
        if run is None or (interval := self._interval_of(run.run_after)) is None:
            return None
        # As in Airflow, the DAG's start and end dates apply to the instant of the run. In addition, no partition may
        # start after the end date.
        if restriction.latest is not None and interval.start > restriction.latest:
            return None
        return DagRunInfo(run.run_after, interval)

    def infer_manual_data_interval(self, *, run_after: datetime) -> DataInterval:
        run_after = checked_instant(run_after, "run_after")
        tick = self.at_or_before(run_after)
        return (tick and self._interval_of(tick)) or DataInterval.exact(run_after)

    def restriction_between(self, start: datetime, end: datetime) -> TimeRestriction:
        return TimeRestriction(self._run_of(start), max(end, self._run_of(end)), catchup=True)

    def partition_key(self, interval: DataInterval) -> str:
        return self._keys.key(interval.start)

    def to_partition_date(self, key: str) -> datetime:
        return self._keys.start(key)

    def after(self, moment: datetime) -> datetime | None:
        return self._runs.after(moment)

    def before(self, moment: datetime) -> datetime | None:
        return self._runs.before(moment)

    def serialize(self) -> dict[str, Any]:
        written = self._runs.serialize()
        del written["interval"]
        return {**written, "run_offset": self._offset, "key_format": self.key_format}

    @property
    def _offset(self) -> int:
        assert self.run_offset is not None
        return self.run_offset

    def _interval_of(self, run_at: datetime) -> DataInterval | None:
        """Return the data interval of the run at `run_at`. None: no instant of the expression starts this interval."""
        date = self._moved(run_at, self._offset)
        return None if date is None else DataInterval(date, self.after(date) or date)

    def _run_of(self, date: datetime) -> datetime:
        """Return the instant of the run for the partition that starts at `date`, or `date` if there is no such run."""
        return self._moved(date, -self._offset) or date

    def _moved(self, moment: datetime, steps: int) -> datetime | None:
        found: datetime | None = moment
        for _ in range(abs(steps)):
            if found is None:
                break
            found = self.after(found) if steps > 0 else self.before(found)
        return found


def _checked_offset(value: object) -> int:
    if value is None:
        return 0
    if type(value) is not int or abs(value) > MOST_OFFSET:
        raise DagError(
            f"run_offset is a number of instants of the expression, at most {MOST_OFFSET}, not {value!r}"
        )
    return value


def _offset_text(offset: int) -> str:
    match offset:
        case 0:
            return "that begins"
        case -1:
            return "that has ended"
        case _:
            way = "ahead" if offset > 0 else "back"
            return f"{abs(offset)} instant{'s' if abs(offset) > 1 else ''} {way}"
