"""Finds the next run of a timetable whose runs are due at instants (ticks).

The data interval of each run has a fixed length, and ends at the run's tick.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Protocol

from triggerer.domain.timetables.base import DagRunInfo, DataInterval, TimeRestriction
from triggerer.domain.timetables.clock import now

_LEAST_GRACE = timedelta(minutes=5)


class Ticks(Protocol):
    """The instants of the runs. A method returns None if there is no such instant."""

    def after(self, moment: datetime) -> datetime | None:
        """Return the first tick after `moment`."""

    def at_or_after(self, moment: datetime) -> datetime | None:
        """Return `moment` if it is a tick, otherwise the first after it."""

    def at_or_before(self, moment: datetime) -> datetime | None:
        """Return `moment` if it is a tick, otherwise the last before it."""


def next_tick(
    ticks: Ticks,
    last: DataInterval | None,
    restriction: TimeRestriction,
    *,
    first: Callable[[], datetime | None],
    interval: timedelta,
) -> DagRunInfo | None:
    """Return the run at the tick after the last run; None: no run. Without catch-up, skip to the last past tick.

    Args:
        last: The data interval of the last run; None: there was no run.
        first: Returns the first tick of a DAG with neither a run nor a start date.
        interval: The length of the data interval before the tick.
    """
    earliest = restriction.earliest
    # A cron expression needs a tenth of a millisecond for each tick, so compute few ticks.
    if last is not None:
        tick = ticks.after(last.end)
    elif earliest is None:
        tick = first()
    else:
        tick = ticks.at_or_after(earliest)
    if tick is None:
        return None
    if not restriction.catchup:
        if tick <= now():
            tick = max(tick, ticks.at_or_before(now()) or tick)
        if (
            earliest is not None
            and earliest > tick
            and (tick := ticks.at_or_after(earliest)) is None
        ):
            return None
    if restriction.latest is not None and tick > restriction.latest:
        return None
    return DagRunInfo.interval(tick - interval, tick)


def first_tick(ticks: Ticks, grace: timedelta | None = None) -> datetime | None:
    """Return the first tick of a DAG without a start date: the last past tick if it is recent, otherwise the next.

    Args:
        grace: How far back the past tick may lie. None: five minutes, or a tenth of the time between the past tick and
            the next tick, whichever is more.
    """
    moment = now()
    past, following = ticks.at_or_before(moment), ticks.at_or_after(moment)
    if past is None:
        return following
    if grace is None:
        gap = timedelta(0) if following is None else following - past
        grace = max(gap / 10, _LEAST_GRACE)
    return past if moment - past <= grace else following
