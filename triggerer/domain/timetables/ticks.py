"""Timetables that are given by the instants of their runs. They can be combined: see `combined`."""

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
    """A timetable that knows the instants of its runs, in both directions.

    `after` and `before` are given and return aware instants in UTC, strictly later or earlier ones, and agree: nothing
    lies between a moment and what comes after it. None: there is no such instant, or none within reach.
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
        """Return whether `moment` is one of the instants."""
        return self.at_or_after(moment) == moment


class TickTimetable(HasTicks):
    """A run at each of the instants: the simplest base for a timetable of your own, which adds `after` and `before`.

    Missed instants are made up for one by one with catch-up; without, the last one is. If the DAG has neither a start
    nor a run, the first is the instant just past, if that was no longer ago than a tenth of the gap or five minutes.
    """

    __slots__ = ()

    interval: timedelta = timedelta(0)
    """How long before the run its data interval starts."""

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
        # It is the run, at the end of the data interval, that is bounded.
        return TimeRestriction(start, end + self.interval, catchup=True)

    def _first(self) -> datetime | None:
        return first_tick(self)


def checked_ticks(value: object, owner: str) -> HasTicks:
    """Return a timetable that is given by instants.

    Raises:
        DagError: It is none, such as a delta, whose runs depend on the run before.
    """
    if not isinstance(value, HasTicks):
        raise DagError(
            f"{owner} takes timetables that are given by instants, not {value!r}",
            hint="crons, events, days of work, combinations of them, or a TickTimetable of your own",
        )
    refuse_keys(value, owner)
    return value


def refuse_keys(timetable: Timetable, owner: str) -> None:
    """Do nothing, unless the runs of a timetable have partition keys, of other data intervals than its owner's.

    Raises:
        DagError: They have.
    """
    if timetable.partitioned:
        raise DagError(
            f"{owner} has other data intervals than {timetable!r}, and so other partition keys",
            hint=f"put Keyed around {owner}",
        )


def ticks_from_json(value: Any) -> HasTicks:
    """Return the timetable that was written, one that is given by instants."""
    return checked_ticks(timetable_from_json(value), "a combination")


def earliest_after(timetables: Iterable[HasTicks], moment: datetime) -> datetime | None:
    """Return the first instant of any of them after `moment`; None: there is none."""
    found = (one.after(moment) for one in timetables)
    return min((one for one in found if one is not None), default=None)


def latest_before(timetables: Iterable[HasTicks], moment: datetime) -> datetime | None:
    """Return the last instant of any of them before `moment`; None: there is none."""
    found = (one.before(moment) for one in timetables)
    return max((one for one in found if one is not None), default=None)
