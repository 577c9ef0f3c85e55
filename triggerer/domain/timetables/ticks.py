"""Timetables with fixed instants, which `combined` can combine."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from triggerer.domain.timetables._triggers import first_tick, next_tick
from triggerer.domain.timetables.base import (
    DagRunInfo,
    DataInterval,
    TimeRestriction,
    Timetable,
    checked_instant,
    in_utc,
)
from triggerer.domain.timetables.serialization import timetable_from_json
from triggerer.errors import DagError

_LEAST = timedelta(microseconds=1)


class HasTicks(Timetable):
    """A timetable whose runs are at fixed instants. Its methods search these instants forwards and backwards.

    The methods take and return aware UTC instants. None: there is no such instant, or the search gave up.
    """

    __slots__ = ()

    @abstractmethod
    def after(self, moment: datetime) -> datetime | None:
        """Return the first instant after `moment`; None: there is none."""

    @abstractmethod
    def before(self, moment: datetime) -> datetime | None:
        """Return the last instant before `moment`; None: there is none."""

    def at_or_after(self, moment: datetime) -> datetime | None:
        """Return `moment` if it is one of the instants, otherwise the first after it."""
        return self.after(moment - _LEAST)

    def at_or_before(self, moment: datetime) -> datetime | None:
        """Return `moment` if it is one of the instants, otherwise the last before it."""
        return self.before(moment + _LEAST)

    def is_due_at(self, moment: datetime) -> bool:
        """Return whether the timetable has a run at `moment`."""
        return self.at_or_after(moment) == moment


class TickTimetable(HasTicks):
    """A run at each instant that `after` and `before` return. The simplest base class for a timetable of your own.

    - With catch-up, each missed instant gets a run.
    - Without catch-up, only the last missed instant gets a run.
    - For a DAG with neither a start date nor a run, only a recent past instant counts as missed: at most five minutes
      ago, or at most a tenth of the gap to the next instant, whichever is longer.
    """

    __slots__ = ()

    interval: timedelta = timedelta(0)
    """The length of the data interval before each run."""

    def next_dagrun_info(
        self,
        *,
        last_automated_data_interval: DataInterval | None,
        restriction: TimeRestriction,
    ) -> DagRunInfo | None:
        last, restriction = in_utc(last_automated_data_interval, restriction)
        return next_tick(
            self,
            last,
            restriction,
            first=self._first,
            interval=self.interval,
        )

    def infer_manual_data_interval(self, *, run_after: datetime) -> DataInterval:
        run_after = checked_instant(run_after, "run_after")
        return DataInterval(run_after - self.interval, run_after)

    def restriction_between(self, start: datetime, end: datetime) -> TimeRestriction:
        # A restriction applies to the instant of the run, which is the end of the data interval.
        return TimeRestriction(start, end + self.interval, catchup=True)

    def _first(self) -> datetime | None:
        return first_tick(self)


def checked_ticks(value: object, owner: str) -> HasTicks:
    """Return the value if it is a timetable with fixed instants and without partition keys.

    Raises:
        DagError: The runs have partition keys, or are not at fixed instants. For example, each run of
            `DeltaTriggerTimetable` depends on the run before it.
    """
    if not isinstance(value, HasTicks):
        raise DagError(
            f"{owner} takes timetables with fixed instants, not {value!r}",
            hint="use crons, events, workdays, combinations of them, or a TickTimetable of your own",
        )
    refuse_keys(value, owner)
    return value


def refuse_keys(timetable: Timetable, owner: str) -> None:
    """Check that a timetable has no partition keys, because another timetable changes its data intervals.

    Partition keys are made from data intervals, so they would not fit the changed intervals.

    Args:
        owner: The name of the other timetable.
    Raises:
        DagError: The runs have partition keys.
    """
    if timetable.partitioned:
        raise DagError(
            f"{owner} has other data intervals than {timetable!r}, and so other partition keys",
            hint=f"put Keyed around {owner}",
        )


def ticks_from_json(value: Any) -> HasTicks:
    """Return the stored timetable, which must have fixed instants."""
    return checked_ticks(timetable_from_json(value), "a combination")


def earliest_after(timetables: Iterable[HasTicks], moment: datetime) -> datetime | None:
    """Return the first instant of any timetable after `moment`; None: there is none."""
    found = (one.after(moment) for one in timetables)
    return min((one for one in found if one is not None), default=None)


def latest_before(timetables: Iterable[HasTicks], moment: datetime) -> datetime | None:
    """Return the last instant of any timetable before `moment`; None: there is none."""
    found = (one.before(moment) for one in timetables)
    return max((one for one in found if one is not None), default=None)
