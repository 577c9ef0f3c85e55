"""Consecutive data intervals, each with a run at its end: what the two timetables of that kind share."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from triggerer.domain.timetables.base import DagRunInfo, DataInterval


class Bounds(Protocol):
    """The instants at which intervals begin and end. None: there is no such instant."""

    def after(self, moment: datetime) -> datetime | None:
        """Return the first bound after `moment`."""

    def at_or_before(self, moment: datetime) -> datetime | None:
        """Return `moment` if it is a bound, otherwise the last before it."""


def next_interval(
    bounds: Bounds,
    last: DataInterval | None,
    *,
    earliest: datetime | None,
    latest: datetime | None,
) -> DagRunInfo | None:
    """Return the run of the interval that follows `last`, and starts no earlier than `earliest`.

    Args:
        earliest: A bound; None: whatever follows `last`, and nothing without one.
        latest: Compared with the interval's start only.
    """
    start = earliest
    if last is not None:
        # The last run may be of another schedule.
        aligned = bounds.at_or_before(last.end)
        start = max((one for one in (aligned, earliest) if one is not None), default=None)
        # A coarser schedule's interval may have begun with, or before, the last run: its date is taken.
        if start is not None and start <= last.start:
            start = bounds.after(start)
    if start is None or (latest is not None and start > latest):
        return None
    end = bounds.after(start)
    return None if end is None else DagRunInfo.interval(start, end)
