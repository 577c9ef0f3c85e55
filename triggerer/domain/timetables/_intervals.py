"""Finds the next run of a timetable with consecutive data intervals. A run is due at the end of each interval."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Protocol

from triggerer.domain.timetables.base import DagRunInfo, DataInterval
from triggerer.domain.timetables.clock import now


class Bounds(Protocol):
    """The instants at which intervals begin and end. A method returns None if there is no such instant."""

    def after(self, moment: datetime) -> datetime | None:
        """Return the first bound after `moment`."""

    def at_or_after(self, moment: datetime) -> datetime | None:
        """Return `moment` if it is a bound, otherwise the first after it."""

    def at_or_before(self, moment: datetime) -> datetime | None:
        """Return `moment` if it is a bound, otherwise the last before it."""


class BoundsBothWays(Bounds, Protocol):
    """Bounds that can also be found backwards."""

    def before(self, moment: datetime) -> datetime | None:
        """Return the last bound before `moment`."""


def next_interval(
    bounds: Bounds,
    last: DataInterval | None,
    *,
    earliest: datetime | None,
    latest: datetime | None,
    over: Callable[[], datetime | None] | None,
) -> DagRunInfo | None:
    """Return the run for the interval after the last run's interval, or for the first interval; None: there is none.

    The function computes as few bounds as possible: a cron expression needs a tenth of a millisecond for each bound.

    Args:
        last: The data interval of the last run; None: there was no run.
        earliest, latest: The limits for the interval's start, both included; None: no limit.
        over: Returns the start of the last interval that has ended. Earlier intervals are skipped. None: skip no
            interval.
    """
    # `last.end` is no bound if the DAG had another schedule when the last run was created.
    start = None if last is None else bounds.at_or_before(last.end)
    end: datetime | None = None
    if over is not None:
        end = None if start is None else bounds.after(start)
        if end is None or end <= now():
            made_up = over()
            if made_up is not None and (start is None or made_up > start):
                start, end = made_up, None
    if earliest is not None and (start is None or earliest > start):
        start, end = bounds.at_or_after(earliest), None
    # The schedule may have changed to longer intervals, for example from hours to days. If the last run's hour lies in
    # the day that begins at `start`, the run counts as the run of that day. The next run is for the next day.
    if last is not None and start is not None and start <= last.start:
        start, end = bounds.after(start), None
    if start is None or (latest is not None and start > latest):
        return None
    end = end or bounds.after(start)
    return None if end is None else DagRunInfo.interval(start, end)


def start_of_last(bounds: BoundsBothWays) -> datetime | None:
    """Return the start of the last interval that has ended; if none has ended, the start of the first interval.

    None: there is no interval.
    """
    end = bounds.at_or_before(now())
    return bounds.after(now()) if end is None else bounds.before(end) or end
