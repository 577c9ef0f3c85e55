"""What the decider is given, a DAG's snapshot, and what it answers: a look."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from triggerer.domain.runs import RunType
from triggerer.domain.schedules import Schedule
from triggerer.domain.timetables import DagRunInfo, DataInterval, TimeRestriction
from triggerer.scheduler.holds import Hold, HoldKind

_UNRESTRICTED: Final = TimeRestriction(None, None, catchup=False)


@dataclass(frozen=True, slots=True)
class WaitingAsset:
    """An asset with events that are queued for a DAG."""

    asset_id: int
    name: str
    uri: str
    queued: int
    """How many, at least 1; not counted beyond the snapshot's bound."""
    aliases: frozenset[str] = frozenset()
    """The names of the DAG's aliases that resolve to it."""


@dataclass(frozen=True, slots=True)
class PartitionQueue:
    """The partition keys of a DAG whose runs may start."""

    due: tuple[str, ...] = ()
    """In their order; not all, if they are more than a look may make runs for."""
    next_at: datetime | None = None
    """When the next one may start without another event; None: none, or it is not known yet."""
    is_behind: bool = False
    """Events wait that were not divided among the keys yet: no run starts before they are."""


@dataclass(frozen=True, slots=True)
class LastRun:
    """The newest run of a DAG."""

    run_id: str
    state: str


@dataclass(frozen=True, slots=True)
class DagSnapshot:
    """A DAG that may be due, as read from the database at the instant `now`."""

    dag_id: str
    schedule: Schedule | None
    now: datetime
    """By the database's clock, as all instants here."""
    max_active_runs: int = 16
    active_runs: int = 0
    events_per_run: int | None = None
    """None: a run takes everything that is queued."""
    waiting: tuple[WaitingAsset, ...] = ()
    is_paused: bool = False
    is_stale: bool = False
    restriction: TimeRestriction = _UNRESTRICTED
    last_interval: DataInterval | None = None
    """Of the last run, due by now, that the timetable has asked for."""
    last_run_after: datetime | None = None
    """Of the same run."""
    stored_info: DagRunInfo | None = None
    """What the timetable asked for next after that run, or when the file or the pause last changed."""
    made: frozenset[DataInterval] = frozenset()
    """Intervals for which there are runs beside: they are passed over."""
    last_run_at: datetime | None = None
    """When the last run was made that was not asked for by hand."""
    min_run_gap: timedelta | None = None
    quiet_period: timedelta | None = None
    newest_event: datetime | None = None
    """The instant of the newest event that waits and does not lie ahead; only known where there is a quiet period."""
    depends_on_past: bool = False
    last_run: LastRun | None = None
    """The newest run that is no backfill's; only known where the DAG depends on it."""
    last_kind: RunType | None = None
    """Of the newest run that was made by time or by assets; only known where the DAG is scheduled by either."""
    partitions: PartitionQueue = PartitionQueue()
    """Where it is scheduled by them."""


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run that is to be made.

    It takes events where it has `asset_ids`, and has a data interval where a timetable has asked for it.
    """

    dag_id: str
    run_type: RunType
    asset_ids: tuple[int, ...] = ()
    """The assets for which events wait."""
    events_per_run: int | None = None
    """How many of each asset it takes, the oldest; None: all that wait when it is made."""
    info: DagRunInfo | None = None
    partition_key: str | None = None
    """Made of its data interval, where a timetable gives keys; otherwise it takes all that is there for this key, and
    nothing else."""

    @property
    def run_after(self) -> datetime | None:
        """The instant that its timetable says; None: that at which it is made, when all that it waits for is there."""
        return self.info.run_after if self.info and self.run_type is RunType.SCHEDULED else None


@dataclass(frozen=True, slots=True)
class Look:
    """What one look at a DAG has found."""

    dag_id: str
    runs: tuple[NewRun, ...] = ()
    """That may be made now, in order."""
    holds: tuple[Hold, ...] = ()
    """What the run after these waits for, and what holds it."""
    next_info: DagRunInfo | None = None
    """The run that its timetable asks for after these, due or not."""
    is_cut_short: bool = False
    """More may be due as soon as these exist: a bound of the look was reached."""

    def first(self, count: int) -> Look:
        """Return the same look with only so many of its runs."""
        if count >= len(self.runs):
            return self
        cut = [run.info for run in self.runs[count:] if run.info is not None]
        return replace(
            self,
            runs=self.runs[:count],
            next_info=cut[0] if cut else self.next_info,
            is_cut_short=True,
        )

    def wake_at(self, now: datetime) -> datetime | None:
        """Return when to look again if nothing else happens; None: time alone changes nothing."""
        moments = [hold.until for hold in self.holds if hold.until is not None and hold.until > now]
        return min(moments, default=None)

    @property
    def waits_for_end(self) -> bool:
        """Whether the end of a run may make the DAG due."""
        return any(hold.kind in (HoldKind.CAP, HoldKind.PAST) for hold in self.holds)
