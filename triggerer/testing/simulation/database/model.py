"""A model of the database: all durable rows. A commit changes them."""

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
"""The text that the store refuses in JSON, as PostgreSQL does."""
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Dag:
    """A DAG as its file describes it. A DAG without a `schedule` waits for the assets of its condition."""

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
    """The checker's model of a schedule by partition keys, or None if the schedule has no keys."""
    outlet: str | None = None
    """The asset, if any, that each run updates at its end, under the run's partition key."""

    @property
    def on(self) -> Schedule:
        """The schedule that makes the DAG's runs due."""
        if self.schedule is None:
            assert self.condition is not None
            return OnAssets(self.condition)
        return self.schedule

    @property
    def restriction(self) -> TimeRestriction:
        return TimeRestriction(self.start_date, self.end_date, self.catchup)

    def waits_for(self, asset_ids: dict[str, int]) -> set[int]:
        """The ids of the DAG's assets."""
        if self.condition is None:
            return set()
        return {asset_ids[asset.name] for asset in assets_of(self.condition)}


@dataclass(frozen=True, slots=True)
class DagState:
    """The columns of a DAG's row that its file does not state."""

    is_paused: bool = False
    is_stale: bool = False
    next_run: DagRunInfo | None = None
    """The run that the timetable planned when it was last called."""
    last_run_at: datetime | None = None


@dataclass(slots=True)
class Run:
    """A run and its events."""

    pk: int
    dag_id: str
    run_id: str
    run_type: RunType
    run_after: datetime
    made_at: datetime
    """When the run's row was inserted, by the database's clock."""
    interval: DataInterval | None = None
    partition_key: str | None = None
    events: list[int] = field(default_factory=list)
    is_ended: bool = False


class ReadAt(NamedTuple):
    """The instant at which a scheduler read a DAG, by the clocks of the database and of the scheduler's host."""

    database: datetime
    host: datetime
    """The instant by the host's clock. Timetables read this clock, and the simulation may have changed it since."""


class PlanningObserver(Protocol):
    """Observes transactions on DAGs and their runs, and records broken promises."""

    def on_creating(self, run: Run, read_at: ReadAt | None) -> None:
        """Called when a statement creates a run. `read_at` is when this transaction read the DAG; None: it did not."""

    def on_run(self, dag: Dag, state: DagState, run: Run) -> None:
        """Called when a run commits, just before it is added to the store's runs."""

    def on_next_run(self, dag_id: str, info: DagRunInfo | None, decided_at: datetime) -> None:
        """Called when the plan of a DAG's next run commits, after the transaction's runs."""

    def on_changed(self, dag: Dag, state: DagState) -> None:
        """Called when a changed row of a DAG commits."""

    def on_committed(self) -> None:
        """Called after each transaction of any kind has become durable."""


@dataclass(slots=True)
class Owners:
    """The registered instances and the leases of streams."""

    leases: dict[str, tuple[str | None, int]] = field(default_factory=dict)
    """By digest of a stream: its owner, if any, and its epoch."""
    expiries: dict[str, datetime] = field(default_factory=dict)
    """By digest of a stream: the end of its lease."""
    instances: dict[str, datetime] = field(default_factory=dict)
    """The end of each registration, by instance."""

    def is_free(self, digest: str, now: datetime) -> bool:
        """Whether the stream has no owner, or its owner's lease has expired."""
        owner, _ = self.leases[digest]
        return owner is None or self.expiries[digest] <= now

    def copy(self) -> Owners:
        return Owners(dict(self.leases), dict(self.expiries), dict(self.instances))


@dataclass(frozen=True, slots=True)
class LoadsShown:
    """The loads of all streams, as one instance read them at its last heartbeat to compute its share of the streams."""

    loads: dict[str, StreamLoad]
    instances: int

    def is_beyond_share(self, instance: str) -> bool:
        """Whether the instance owned more than its share of the streams."""
        owned = sum(load.owner == instance for load in self.loads.values())
        return owned > -(-len(self.loads) // self.instances)


async def _at_once(*_: int) -> None:
    pass


class Store:
    """All durable rows. The commit of a `Transaction` applies all of its changes at once."""

    def __init__(self, scenario: Scenario, faults: FaultInjector, checker: Checker) -> None:
        self.scenario = scenario
        self.faults = faults
        self.checker = checker
        self.dags: dict[str, Dag] = {}
        self.asset_ids: dict[str, int] = {}
        self.owners = Owners()
        self.shortened: set[tuple[str, str | None, int]] = set()
        """Leases that another instance can claim before the owner's own clock shows that they are over."""
        self.triggers: dict[int, TriggerRow] = {}
        self.positions: dict[tuple[int, int], PositionRow] = {}
        """The rows of positions, by watcher and lane."""
        self.replays: dict[int, ReplayRequest] = {}
        """The replays that are not done, by id."""
        self.parked: dict[tuple[int, str], ParkedRow] = {}
        """The rows of stored and parked messages, by watcher and key."""
        self.parked_bodies: dict[ParkedBody, int] = {}
        """The bodies (the bytes) of stored and parked messages, each with its id."""
        self.watcher_states: dict[int, WatcherState] = {}
        """The states of watchers, by watcher."""
        self.closed_until: dict[str, datetime | None] = {}
        """By digest, until when a new stream stays closed; see `triggerer.domain.dag_files.new_streams`."""
        self.shown: dict[str, LoadsShown] = {}
        """The loads that each instance read last, by instance."""
        self.derived_under: dict[datetime, Fence] = {}
        """By an event's timestamp, which is unique: the lease under which the event was yielded."""
        self.answered: set[datetime] = set()
        """The timestamps of events whose rows were stored or refused."""
        self.events: dict[int, int] = {}
        """The asset of each event, by the event's id."""
        self.event_times: dict[int, datetime] = {}
        self.event_keys: dict[int, str | None] = {}
        """The partition key of each event, by the event's id."""
        self.partitions: defaultdict[str, Partitions] = defaultdict(Partitions)
        """By DAG, the rows of its partition keys. Their `queue` is the DAG's entry in `queues`."""
        self.states: defaultdict[str, DagState] = defaultdict(DagState)
        """The states of DAGs, by DAG."""
        self.times: PlanningObserver | None = None
        """Checks the runs of timetables, or None in a world without timetables."""
        self.queues: dict[str, dict[int, int | None]] = {}
        """By DAG: its events, each with the run that took it, if any."""
        self.versions: Counter[str] = Counter()
        """By DAG, the version of the DAG's row.

        Each new run, each new plan of the next run, and each change of the DAG increases the
        version.
        """
        self.runs: dict[int, Run] = {}
        self.wakeups: Wakeups = Wakeups()
        self.pending_commits: dict[int, Callable[[], None]] = {}
        """Commits on the way to the database. They arrive even if their process crashes."""
        self.skew = timedelta()
        self.deleting_position: Callable[[int, int], Awaitable[None]] = _at_once
        """Called with a watcher and a lane before the commit of a transaction that deletes their position."""
        self.time: Callable[[], float] = lambda: asyncio.get_running_loop().time()
        """Returns the virtual time, in seconds.

        This function is replaced before a seed runs, because a commit may arrive while no loop runs.
        """
        self._last_id = 0

    @property
    def declared(self) -> set[int]:
        """The ids of the declared watchers."""
        return {one.watcher_id for row in self.triggers.values() for one in row.watchers}

    def next_id(self) -> int:
        """Return the next number of a sequence. Numbers are in the order of inserts, not of commits."""
        self._last_id += 1
        return self._last_id

    def mark_shortened(self, digests: Iterable[str]) -> None:
        """Record that the leases on these streams may expire too early, for example if the database's clock jumps."""
        self.shortened.update((digest, *self.owners.leases[digest]) for digest in digests)

    def is_taken_over(self, fence: Fence) -> bool:
        """Whether this lease is no longer in the store, and did not end too early (`shortened`)."""
        lease = (fence.owner, fence.epoch)
        return self.owners.leases[fence.stream_digest] != lease and fence not in self.shortened

    def now(self) -> datetime:
        return EPOCH + self.skew + timedelta(seconds=self.time())

    def waiting(self, dag: Dag) -> dict[int, list[int]]:
        """Return, by asset, the DAG's events that no run has taken, oldest first."""
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
        """Return the reason why the DAGs are not done yet; None if they are done."""
        for dag in self.dags.values():
            if self.active_runs(dag.dag_id):
                return f"{dag.dag_id} has a run that has not ended"
            if self.is_due(dag, self.waiting(dag)):
                return f"{dag.dag_id} is due for {self.waiting(dag)} but gets no run"
        return None
