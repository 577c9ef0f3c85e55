"""The runs of a timetable within a range, and the step that a backfill takes for each interval."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from triggerer.domain.instants import readable
from triggerer.domain.runs import RunState
from triggerer.errors import DagError

if TYPE_CHECKING:
    from triggerer.domain.timetables import DagRunInfo, DataInterval, Timetable

MOST_INTERVALS: Final = 50_000


class Reprocess(StrEnum):
    """The intervals whose existing run a backfill repeats."""

    NONE = "none"
    FAILED = "failed"
    """Intervals whose run failed or was cancelled."""
    ALL = "all"


class Step(StrEnum):
    """The action of a backfill for one interval."""

    RUN = "run"
    """Create a run."""
    REPEAT = "repeat"
    """Repeat the existing run from its beginning."""
    SKIP = "skip"


def step_for(existing: RunState | None, reprocess: Reprocess) -> Step:
    """Return the step for an interval. `existing` is the state of the interval's run; None: the interval has no run.

    A backfill never touches a queued or running run.
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

    Runs that are not yet due are left out. The DAG's own start and end dates do not apply.

    Raises:
        DagError: The range has too many runs, or the timetable does not advance.
    """
    restriction = timetable.restriction_between(start, end)
    found: list[DagRunInfo] = []
    last: DataInterval | None = None
    previous: datetime | None = None
    while True:
        info = timetable.next_dagrun_info(
            last_automated_data_interval=last, restriction=restriction
        )
        if info is None or info.logical_date > end or info.run_after > now:
            return found
        if previous is not None and info.logical_date <= previous:
            raise DagError(
                f"the timetable {timetable.summary} does not advance: after the logical date"
                f" {readable(previous)} it gives {readable(info.logical_date)}"
            )
        if len(found) == MOST_INTERVALS:
            raise DagError(
                f"there are more than {MOST_INTERVALS} runs", hint="choose a shorter range"
            )
        if info.logical_date >= start:
            found.append(info)
        last, previous = info.data_interval, info.logical_date
