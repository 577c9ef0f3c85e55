"""The input of `decide`, a snapshot of a DAG, and its result, a look.

A look names the runs to create now, and the reasons (holds) why no further run is created.
"""

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
    """An asset with queued events for a DAG."""

    asset_id: int
    name: str
    uri: str
    queued: int
    """The number of queued events, at least 1. Counting stops at the bound of `look`."""
    aliases: frozenset[str] = frozenset()
    """The DAG's aliases that resolve to this asset."""


@dataclass(frozen=True, slots=True)
class PartitionQueue:
    """The partition keys of one DAG whose runs can start now or later."""

    due: tuple[str, ...] = ()
    """The keys whose runs can start now, earliest first. The scheduler reads only some of them."""
    next_at: datetime | None = None
    """When the run of the next key can start without another event. None: never, or not known yet."""
    is_behind: bool = False
    """True if some queued events are not divided among the keys yet. No run starts before all events are divided."""


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
    """The present instant by the database's clock. All instants of a snapshot are by this clock."""
    max_active_runs: int = 16
    active_runs: int = 0
    events_per_run: int | None = None
    """None: a run takes all queued events."""
    waiting: tuple[WaitingAsset, ...] = ()
    is_paused: bool = False
    is_stale: bool = False
    restriction: TimeRestriction = _UNRESTRICTED
    last_interval: DataInterval | None = None
    """The data interval of the newest run that the timetable asked for. Runs in the future do not count."""
    last_run_after: datetime | None = None
    """The `run_after` of the run that covers `last_interval`."""
    stored_info: DagRunInfo | None = None
    """The timetable's last answer, as stored when a run was created, or when the DAG was changed, paused or unpaused.
    None: nothing is stored."""
    covered_intervals: frozenset[DataInterval] = frozenset()
    """Data intervals that a backfill or an event-driven run covers already. The timetable's runs skip them."""
    last_run_at: datetime | None = None
    """When the last timed or event-driven run was created. Manual runs and backfills do not count."""
    min_run_gap: timedelta | None = None
    quiet_period: timedelta | None = None
    newest_event: datetime | None = None
    """The instant of the newest queued event, except events in the future; read only if the DAG has a quiet period."""
    depends_on_past: bool = False
    last_run: LastRun | None = None
    """The newest run, backfills excepted; read only if `depends_on_past`."""
    last_kind: RunType | None = None
    """The type of the newest timed or event-driven run; read only if the schedule is `OnEither`."""
    partitions: PartitionQueue = PartitionQueue()
    """Empty unless the DAG is scheduled by partition keys."""


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run to create. A `SCHEDULED` run takes no events. A run that a timetable asked for has a data interval."""

    dag_id: str
    run_type: RunType
    asset_ids: tuple[int, ...] = ()
    """The assets whose queued events the run takes. Empty if the run takes the events of its partition key instead."""
    events_per_run: int | None = None
    """How many events of each asset the run takes, oldest first. None: all events that are queued at its creation."""
    info: DagRunInfo | None = None
    partition_key: str | None = None
    """The key of the run's data interval, if the timetable produces keys. Or the key whose events the run takes, if the
    DAG is scheduled by partition keys. None: the run has no key."""

    @property
    def run_after(self) -> datetime | None:
        """The instant that the timetable names; None for an event-driven run, which is due when it is created."""
        return self.info.run_after if self.info and self.run_type is RunType.SCHEDULED else None


@dataclass(frozen=True, slots=True)
class Look:
    """The result of one look at a DAG."""

    dag_id: str
    runs: tuple[NewRun, ...] = ()
    """The runs to create now, in order."""
    holds: tuple[Hold, ...] = ()
    """The reasons why no further run is created."""
    next_info: DagRunInfo | None = None
    """The run that the timetable asks for after `runs`, due or not. None: there is no such run, or no timetable."""
    is_cut_short: bool = False
    """True if the look reached a limit, so that further runs may be due as soon as `runs` are created."""

    def first(self, count: int) -> Look:
        """Return this look with its first `count` runs only."""
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
        """Return when to look again if nothing else happens. None: time alone changes nothing."""
        moments = [hold.until for hold in self.holds if hold.until is not None and hold.until > now]
        return min(moments, default=None)

    @property
    def waits_for_end(self) -> bool:
        """True if the end of a run may make the DAG due."""
        return any(hold.kind in (HoldKind.CAP, HoldKind.PAST) for hold in self.holds)
