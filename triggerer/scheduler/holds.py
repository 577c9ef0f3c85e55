"""The reasons why a DAG has no next run yet, or why its queued runs do not start. `why-not` shows them.

If a reason ends at a known time, the scheduler looks at the DAG again at that time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from triggerer.domain.instants import readable

_SHOWN: Final = 20
"""The most assets that a reason names. `triggerer assets list --dag` shows all of them."""


class HoldKind(StrEnum):
    """The kinds of reasons, as `why-not --json` names them."""

    STALE = "stale"
    PAUSED = "paused"
    CAP = "cap"
    GAP = "gap"
    PAST = "past"
    QUIET = "quiet"
    TIME = "time"
    ASSETS = "assets"
    POOL = "pool"
    ATTEMPT = "attempt"
    FILE = "file"
    WORKER = "worker"
    PARTITION = "partition"
    SCHEDULE = "schedule"


@dataclass(frozen=True, slots=True)
class Hold:
    """One reason why there is no next run yet, or why a queued run does not start.

    Args:
        until: The instant at which the hold ends even if nothing else happens. None: something must happen, such as an
            event or the end of a run.
    """

    kind: HoldKind
    reason: str
    until: datetime | None = None

    @classmethod
    def stale(cls) -> Hold:
        return cls(HoldKind.STALE, "it is gone from its file")

    @classmethod
    def paused(cls) -> Hold:
        return cls(HoldKind.PAUSED, "it is paused")

    @classmethod
    def by_hand(cls) -> Hold:
        return cls(HoldKind.SCHEDULE, "it has no schedule: runs are triggered by hand")

    @classmethod
    def partitions(cls, next_at: datetime | None) -> Hold:
        return cls(HoldKind.PARTITION, "no partition key has all that its run needs", next_at)

    @classmethod
    def refused(cls, event_id: int, asset: str, why: str) -> Hold:
        reason = f"the newest event of {asset}, {event_id}, is for no run: {why}"
        return cls(HoldKind.PARTITION, reason)

    @classmethod
    def cap(cls, active: int, most: int) -> Hold:
        reason = f"{active} runs are queued or running, and at most {most} are allowed"
        return cls(HoldKind.CAP, reason)

    @classmethod
    def gap(cls, last: datetime, gap: timedelta) -> Hold:
        return cls(HoldKind.GAP, f"its runs are at least {gap} apart (min_run_gap)", last + gap)

    @classmethod
    def past(cls, run_id: str | None, state: str) -> Hold:
        name = "the run before" if run_id is None else f"the run before, {run_id},"
        return cls(HoldKind.PAST, f"{name} is {state}, and must succeed first (depends_on_past)")

    @classmethod
    def pool(cls, run_id: str, pools: Sequence[str]) -> Hold:
        reason = f"its run {run_id} is queued, and waits for a slot of {', '.join(pools)}"
        return cls(HoldKind.POOL, reason)

    @classmethod
    def attempt(cls, run_id: str, what: str) -> Hold:
        return cls(HoldKind.ATTEMPT, f"its run {run_id} is queued, and waits for {what}")

    @classmethod
    def file(cls, error: str, queued: int) -> Hold:
        waiting = "its runs wait" if not queued else f"{_runs(queued)} until it does"
        return cls(HoldKind.FILE, f"its file does not load: {error}; {waiting}")

    @classmethod
    def worker(cls, queued: int, what: str) -> Hold:
        return cls(HoldKind.WORKER, f"{_runs(queued)}, waiting for {what}")

    @classmethod
    def quiet(cls, newest: datetime, period: timedelta) -> Hold:
        reason = f"a run starts once no event has arrived for {period} (quiet_period)"
        return cls(HoldKind.QUIET, reason, newest + period)

    @classmethod
    def time(cls, run_after: datetime) -> Hold:
        return cls(HoldKind.TIME, "its timetable's next run is not due", run_after)

    @classmethod
    def no_time(cls) -> Hold:
        return cls(HoldKind.TIME, "its timetable asks for no further run")

    @classmethod
    def no_start(cls) -> Hold:
        reason = "its timetable asks for no run: catchup=True needs a start_date to begin at"
        return cls(HoldKind.TIME, reason)

    @classmethod
    def not_begun(cls, start: datetime) -> Hold:
        return cls(HoldKind.TIME, "its start_date has not come", start)

    @classmethod
    def ended(cls, end: datetime) -> Hold:
        return cls(HoldKind.TIME, f"its end_date, {readable(end)}, has passed")

    @classmethod
    def assets(cls, names: Sequence[str]) -> Hold:
        shown = ", ".join(names[:_SHOWN])
        others = f" and {len(names) - _SHOWN:,} others" if len(names) > _SHOWN else ""
        return cls(HoldKind.ASSETS, f"no event of {shown}{others} is waiting")


def _runs(queued: int) -> str:
    return "1 run is queued" if queued == 1 else f"{queued} runs are queued"
