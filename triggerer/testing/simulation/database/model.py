"""A model of the database: what is durable."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple, Protocol

from triggerer.domain.conditions import Condition, assets_of, is_satisfied
from triggerer.domain.events import Fence
from triggerer.domain.runs import RunType
from triggerer.domain.schedules import OnAssets, Schedule
from triggerer.domain.timetables import DagRunInfo, DataInterval, TimeRestriction
from triggerer.store.database.wakeups.signals import Wakeups
from triggerer.testing.simulation.database.partition_rows import Partitions

if TYPE_CHECKING:
    from triggerer.domain.watchers.lane_positions import ReplayRequest
    from triggerer.store.watchers.hosting import StreamLoad, TriggerRow, WatcherState
    from triggerer.testing.simulation.checks.checker import Checker
    from triggerer.testing.simulation.checks.partition_model import Keyed
    from triggerer.testing.simulation.kernel.delivery import ParkedBody, ParkedRow, PositionRow
    from triggerer.testing.simulation.kernel.drawn_faults import FaultInjector
    from triggerer.testing.simulation.kernel.scenario import Scenario

REFUSED = "\\u0000"
"""What the store refuses to write, as PostgreSQL does in JSON."""
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Dag:
    """A DAG as its file describes it; without a `schedule` of its own it waits for the assets of its condition."""

    dag_id: str
    condition: Condition | None
    max_active_runs: int
    events_per_run: int | None
    schedule: Schedule | None = None
    start_date: datetime | None = None
    end_date: datetime | None = None
    catchup: bool = False
    min_run_gap_s: float | None = None
    quiet_period_s: float | None = None
    depends_on_past: bool = False
    keyed: Keyed | None = None
    """What a schedule by partition keys means, in plain words; None: it has none."""
    outlet: str | None = None
    """The asset of which each run emits an event at its end, with the run's partition key, if it has one."""

    @property
    def on(self) -> Schedule:
        """What makes its runs due."""
        if self.schedule is None:
            assert self.condition is not None
            return OnAssets(self.condition)
        return self.schedule

    @property
    def restriction(self) -> TimeRestriction:
        return TimeRestriction(self.start_date, self.end_date, self.catchup)

    def waits_for(self, asset_ids: dict[str, int]) -> set[int]:
        """The ids of its assets."""
        if self.condition is None:
            return set()
        return {asset_ids[asset.name] for asset in assets_of(self.condition)}


@dataclass(frozen=True, slots=True)
class DagState:
    """What else is in the row of a DAG."""

    is_paused: bool = False
    is_stale: bool = False
    next_run: DagRunInfo | None = None
    """What its timetable asked for when it was last asked."""
    last_run_at: datetime | None = None


@dataclass(slots=True)
class Run:
    """A run, and the events that it took."""

    pk: int
    dag_id: str
    run_id: str
    run_type: RunType
    run_after: datetime
    made_at: datetime
    """By the database's clock, when the statement ran."""
    interval: DataInterval | None = None
    partition_key: str | None = None
    events: list[int] = field(default_factory=list)
    is_ended: bool = False


class ReadAt(NamedTuple):
    """When a scheduler has read a DAG, by two clocks."""

    database: datetime
    host: datetime
    """Its host's, by which timetables are asked, and which may be set before the run is made."""


class PlanningObserver(Protocol):
    """Is told what transactions do about DAGs and their runs; it notes what breaks a promise."""

    def on_creating(self, run: Run, read_at: ReadAt | None) -> None:
        """A statement creates a run of a DAG that was read then, if it was."""

    def on_run(self, dag: Dag, state: DagState, run: Run) -> None:
        """It commits, and is not one of the store's runs yet."""

    def on_noted(self, dag_id: str, info: DagRunInfo | None, decided_at: datetime) -> None:
        """What the timetable asks for next commits; the runs that were made with it are there."""

    def on_changed(self, dag: Dag, state: DagState) -> None:
        """A changed row of a DAG commits."""

    def on_committed(self) -> None:
        """A transaction has become durable, whatever it was."""


@dataclass(slots=True)
class Owners:
    """Which instances live, and which of them owns which stream; by the stream's digest."""

    leases: dict[str, tuple[str | None, int]] = field(default_factory=dict)
    """Owner, if any, and epoch."""
    expiries: dict[str, datetime] = field(default_factory=dict)
    instances: dict[str, datetime] = field(default_factory=dict)
    """By instance, when its registration expires."""

    def is_free(self, digest: str, now: datetime) -> bool:
        """Whether it has no owner, or its owner's lease has expired."""
        owner, _ = self.leases[digest]
        return owner is None or self.expiries[digest] <= now

    def copy(self) -> Owners:
        return Owners(dict(self.leases), dict(self.expiries), dict(self.instances))


@dataclass(frozen=True, slots=True)
class LoadsShown:
    """What an instance read at its last heartbeat, by which it divides the streams."""

    loads: dict[str, StreamLoad]
    instances: int

    def is_beyond_share(self, instance: str) -> bool:
        """Whether it owned more than its share of them."""
        owned = sum(load.owner == instance for load in self.loads.values())
        return owned > -(-len(self.loads) // self.instances)


async def _at_once(*_: int) -> None:
    pass


class Store:
    """What is durable. A `Transaction` changes it at its commit, all at once."""

    def __init__(self, scenario: Scenario, faults: FaultInjector, checker: Checker) -> None:
        self.scenario = scenario
        self.faults = faults
        self.checker = checker
        self.dags: dict[str, Dag] = {}
        self.asset_ids: dict[str, int] = {}
        self.owners = Owners()
        self.shortened: set[tuple[str, str | None, int]] = set()
        """Leases that others may have taken sooner than their owners can know by clocks of their own."""
        self.triggers: dict[int, TriggerRow] = {}
        self.positions: dict[tuple[int, int], PositionRow] = {}
        """By watcher and lane."""
        self.replays: dict[int, ReplayRequest] = {}
        """By id what is asked of watchers of logs."""
        self.parked: dict[tuple[int, str], ParkedRow] = {}
        """By watcher and key."""
        self.parked_bodies: dict[ParkedBody, int] = {}
        """Their bytes, with the ids."""
        self.watcher_states: dict[int, WatcherState] = {}
        """By watcher how it is shown."""
        self.closed_until: dict[str, datetime | None] = {}
        """By the digest of a stream; see `triggerer.domain.dag_files.new_streams`."""
        self.shown: dict[str, LoadsShown] = {}
        """By instance."""
        self.derived_under: dict[datetime, Fence] = {}
        """For each event, by its unique timestamp, the lease under which the filter ran that yielded it."""
        self.answered: set[datetime] = set()
        """The timestamps of events whose rows are stored, or were refused."""
        self.events: dict[int, int] = {}
        """The asset of each event, by the event's id."""
        self.event_times: dict[int, datetime] = {}
        self.event_keys: dict[int, str | None] = {}
        """Their partition keys."""
        self.partitions: defaultdict[str, Partitions] = defaultdict(Partitions)
        """By DAG: what is stored for its partition keys; its queue is that of `queues`."""
        self.states: defaultdict[str, DagState] = defaultdict(DagState)
        """By DAG."""
        self.times: PlanningObserver | None = None
        """Checks runs that timetables ask for; None: there are none."""
        self.queues: dict[str, dict[int, int | None]] = {}
        """For each DAG its events, and the run that took each."""
        self.versions: Counter[str] = Counter()
        """Of the DAGs' rows, which change with each run that takes events."""
        self.runs: dict[int, Run] = {}
        self.wakeups: Wakeups = Wakeups()
        self.pending_commits: dict[int, Callable[[], None]] = {}
        """Commits that were sent and have not arrived yet; a crash does not stop them."""
        self.skew = timedelta()
        self.deleting_position: Callable[[int, int], Awaitable[None]] = _at_once
        """Called with a watcher and a lane where a transaction deletes the watcher's position, before it commits."""
        self.time: Callable[[], float] = lambda: asyncio.get_running_loop().time()
        """The virtual time, in seconds; also where no process runs, and a commit arrives."""
        self._last_id = 0

    @property
    def declared(self) -> set[int]:
        """The watchers that there are."""
        return {one.watcher_id for row in self.triggers.values() for one in row.watchers}

    def next_id(self) -> int:
        """From a sequence: in the order of the inserts, which need not be the order of the commits."""
        self._last_id += 1
        return self._last_id

    def mark_shortened(self, digests: Iterable[str]) -> None:
        """The leases on these streams expire sooner than was agreed: the database's clock is set, for example."""
        self.shortened.update((digest, *self.owners.leases[digest]) for digest in digests)

    def is_taken_over(self, fence: Fence) -> bool:
        """Whether somebody else owns the stream, who had to wait until this lease was over."""
        lease = (fence.owner, fence.epoch)
        return self.owners.leases[fence.stream_digest] != lease and fence not in self.shortened

    def now(self) -> datetime:
        return EPOCH + self.skew + timedelta(seconds=self.time())

    def waiting(self, dag: Dag) -> dict[int, list[int]]:
        """The DAG's events that no run has taken, by asset, oldest first."""
        found: dict[int, list[int]] = {}
        for event, run in sorted(self.queues[dag.dag_id].items()):
            if run is None:
                found.setdefault(self.events[event], []).append(event)
        return found

    def is_due(self, dag: Dag, assets: Collection[int]) -> bool:
        return dag.condition is not None and is_satisfied(
            dag.condition, lambda leaf: self.asset_ids[leaf.name] in assets
        )

    def active_runs(self, dag_id: str) -> int:
        return sum(run.dag_id == dag_id and not run.is_ended for run in self.runs.values())

    def idle_reason(self) -> str | None:
        """Why the DAGs are not done yet; None once they are."""
        for dag in self.dags.values():
            if self.active_runs(dag.dag_id):
                return f"{dag.dag_id} has a run that has not ended"
            if self.is_due(dag, self.waiting(dag)):
                return f"{dag.dag_id} is due for {self.waiting(dag)} and gets no run"
        return None
