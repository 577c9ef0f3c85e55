"""Which runs of a timetable lie in a range, and what a backfill does about those that exist."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from triggerer.domain.runs import RunState
from triggerer.errors import DagError

if TYPE_CHECKING:
    from triggerer.domain.timetables import DagRunInfo, DataInterval, Timetable

MOST_INTERVALS: Final = 50_000


class Reprocess(StrEnum):
    """Which intervals that have a run are run again."""

    NONE = "none"
    FAILED = "failed"
    """Those whose run failed or was cancelled."""
    ALL = "all"


class Step(StrEnum):
    """What a backfill does for an interval."""

    RUN = "run"
    """It makes a run."""
    REPEAT = "repeat"
    """It repeats the run that there is, from the beginning."""
    SKIP = "skip"


def step_for(existing: RunState | None, reprocess: Reprocess) -> Step:
    """Return what is done for an interval whose run is in this state; None: it has none.

    A run that is queued or running is left to itself.
    """
    if existing is None:
        return Step.RUN
    is_failed = existing in (RunState.FAILED, RunState.CANCELLED)
    again = reprocess is Reprocess.ALL or (reprocess is Reprocess.FAILED and is_failed)
    return Step.REPEAT if again and existing.is_final else Step.SKIP


def runs_between(
    timetable: Timetable, start: datetime, end: datetime, *, now: datetime
) -> list[DagRunInfo]:
    """Return the runs whose logical date lies between two instants, both included, oldest first.

    Those that are not due yet are left out. What the DAG says of its own start and end does not count.

    Raises:
        DagError: There are too many, or the timetable does not advance.
    """
    restriction = timetable.restriction_between(start, end)
    found: list[DagRunInfo] = []
    last: DataInterval | None = None
    while True:
        info = timetable.next_dagrun_info(
            last_automated_data_interval=last, restriction=restriction
        )
        if info is None or info.logical_date > end or info.run_after > now:
            return found
        if found and info.logical_date <= found[-1].logical_date:
            raise DagError(
                f"the timetable {timetable.summary} gives the same logical date twice: {info.logical_date}"
            )
        if len(found) == MOST_INTERVALS:
            raise DagError(f"there are more than {MOST_INTERVALS} runs", hint="choose a part")
        if info.logical_date >= start:
            found.append(info)
        last = info.data_interval
