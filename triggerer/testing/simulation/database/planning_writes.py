"""The DAGs and runs that one transaction reads and writes (`triggerer.store.dags`, `triggerer.store.runs`)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

import orjson

from triggerer.domain.conditions import assets_of
from triggerer.domain.runs import RunType
from triggerer.domain.schedules import OnEither, OnPartitions, next_info, schedule_to_json
from triggerer.domain.timetables import DagRunInfo, DataInterval
from triggerer.domain.timetables import now as host_now
from triggerer.store.dags.candidates import DueTimes, LockDags, LockFreeDags
from triggerer.store.dags.due_moments import StoreNextRun
from triggerer.store.dags.snapshots import CLOCK_STEP, ReadDags
from triggerer.store.runs.creation.create_run_step import CreateRun, EventSelection
from triggerer.store.runs.creation.planned_runs import CreateRuns, PlannedDag
from triggerer.testing.simulation.database.model import Dag, DagState, ReadAt, Run, Store
from triggerer.testing.simulation.database.partition_rows import NEVER

if TYPE_CHECKING:
    from triggerer.store.database.script import Row

_NO_ASSET = (None, None, None, None, 0, None)
_WHEN_DUE = ("schedule", "start_date", "end_date", "catchup")
Step = LockDags | LockFreeDags | ReadDags | CreateRun | CreateRuns | StoreNextRun


class Locks(Protocol):
    """The transaction that the writes belong to."""

    store: Store

    async def lock_row(self, name: str) -> None: ...

    def lock_free_row(self, name: str) -> bool: ...


class PlanningWrites:
    """Collects writes, which `apply` makes durable all at once."""

    def __init__(self) -> None:
        self._created: list[Run] = []
        self._taken_by: dict[tuple[str, int], int] = {}
        """By DAG and event, the run that takes the event."""
        self._next_runs: list[tuple[str, DagRunInfo | None, datetime | None, datetime]] = []
        """For each DAG, four values: the DAG's id, its next run, and two instants.

        The first instant is when this transaction created runs of the DAG; None: it created none. The second is when
        the next run was decided.
        """
        self._changed: list[tuple[Dag, DagState]] = []
        self._read_at: ReadAt | None = None

    async def perform(self, session: Locks, step: Step) -> list[Row]:
        """Perform a step. Locked rows stay locked until the end of the transaction."""
        store = session.store
        match step:
            case LockDags(dag_ids=dag_ids):
                for dag_id in sorted(dag_ids):
                    await session.lock_row(dag_id)
                return []
            case LockFreeDags(dag_ids=dag_ids):
                return [(dag_id,) for dag_id in sorted(dag_ids) if session.lock_free_row(dag_id)]
            case ReadDags(dag_ids=dag_ids, bound=bound):
                await store.faults.delay()
                self._read_at = _now(store)
                return self._waiting(store, dag_ids, bound)
            case CreateRun(unchanged=None):
                await store.faults.delay()
                return await self._create(session, step)
            case CreateRun(dag_id=dag_id, unchanged=unchanged):
                await session.lock_row(dag_id)
                assert unchanged is not None
                is_as_read = _is_as_read(store, dag_id, unchanged.version)
                await store.faults.delay()
                return await self._create(session, step) if is_as_read else []
            case CreateRuns(dags=dags):
                # DAGs that other transactions have locked are left out.
                free = [dag for dag in dags if session.lock_free_row(dag.dag_id)]
                held = [dag for dag in free if _is_as_read(store, dag.dag_id, dag.version)]
                await store.faults.delay()
                return [(dag.dag_id, await self._create_all(session, dag)) for dag in held]
            case StoreNextRun(
                dag_id=dag_id, run_after=run_after, interval=interval, has_run=has_run
            ):
                await store.faults.delay()
                info = None
                if run_after is not None and interval is not None:
                    info = DagRunInfo(run_after, DataInterval(*interval))
                now = store.now()
                decided_at = now if self._read_at is None else self._read_at.database
                self._next_runs.append((dag_id, info, now if has_run else None, decided_at))
                return []

    async def change_dag(
        self, session: Locks, dag: Dag, is_paused: bool | None, is_stale: bool | None
    ) -> None:
        """Store a changed DAG, as `triggerer.store.dags.sync` and `set_paused` do.

        If the schedule has changed or the pause has ended, store the timetable's next run too.
        """
        store = session.store
        await session.lock_row(dag.dag_id)
        await store.faults.delay()
        before, state = store.dags[dag.dag_id], store.states[dag.dag_id]
        after = replace(
            state,
            is_paused=state.is_paused if is_paused is None else is_paused,
            is_stale=state.is_stale if is_stale is None else is_stale,
        )
        is_resumed = state.is_paused and not after.is_paused
        if is_resumed or any(getattr(before, name) != getattr(dag, name) for name in _WHEN_DUE):
            last = last_automated(store, dag.dag_id)
            interval = None if last is None else last.interval
            after = replace(after, next_run=next_info(dag.on, interval, dag.restriction))
        self._changed.append((dag, after))

    def _waiting(self, store: Store, dag_ids: Collection[str], bound: int) -> list[Row]:
        rows: list[Row] = []
        for dag_id in dag_ids:
            dag = store.dags[dag_id]
            assets = () if dag.condition is None else assets_of(dag.condition)
            named = {store.asset_ids[one.name]: one for one in assets}
            found: list[Row] = []
            for asset, events in self._remaining_events(store, dag).items():
                if asset not in named:
                    # The DAG no longer waits for this asset.
                    continue
                soon = store.now() + CLOCK_STEP
                times = (store.event_times[event] for event in events)
                newest = max((at for at in times if at <= soon), default=None)
                count = min(len(events), bound)
                found.append((asset, named[asset].name, named[asset].uri, None, count, newest))
            rows += [(*_dag_columns(store, dag), *one) for one in found or [_NO_ASSET]]
        return rows

    async def _create(self, session: Locks, step: CreateRun) -> list[Row]:
        store, pk = session.store, session.store.next_id()
        run_after = step.run_after or store.now()
        run_id = str(pk)
        if step.run_type is RunType.SCHEDULED:
            run_id = f"{step.run_type}__{run_after.isoformat()}"
            # Wait for another transaction that inserts the same run.
            await session.lock_row(f"{step.dag_id} {run_id}")
            if any(run.run_id == run_id for run in _runs_of(store, step.dag_id)):
                return []
        interval = None if step.interval is None else DataInterval(*step.interval)
        made_at = store.now()
        key = step.partition_key
        run = Run(pk, step.dag_id, run_id, step.run_type, run_after, made_at, interval, key)
        if store.times is not None:
            store.times.on_creating(run, self._read_at)
        self._created.append(run)
        if step.selection is not None or step.run_type is not RunType.SCHEDULED:
            self._take(store, run, step.selection or EventSelection(0))
        return [(pk, run_id, run_after)]

    async def _create_all(self, session: Locks, dag: PlannedDag) -> int:
        """Create a DAG's runs, and store its next run. Return the number of created runs."""
        store, created = session.store, 0
        self._read_at = _read_at(dag.version)
        for run in dag.runs:
            step = CreateRun(
                dag.dag_id,
                run.run_type,
                {},
                run.run_after,
                None,
                run.selection,
                logical_date=run.logical_date,
                interval=run.interval,
                partition_key=run.partition_key,
            )
            created += len(await self._create(session, step))
        info = store.states[dag.dag_id].next_run
        if (next_run := dag.next_run) is not None:
            info = None
            if next_run.run_after is not None and next_run.interval is not None:
                info = DagRunInfo(next_run.run_after, DataInterval(*next_run.interval))
        made_at, decided_at = store.now() if dag.runs else None, self._read_at.database
        self._next_runs.append((dag.dag_id, info, made_at, decided_at))
        return created

    def _take(self, store: Store, run: Run, selection: EventSelection) -> None:
        waiting = self._remaining_events(store, store.dags[run.dag_id])
        for asset in waiting if selection.per_asset is None else selection.asset_ids:
            for event in waiting.get(asset, [])[: selection.per_asset]:
                self._taken_by[run.dag_id, event] = run.pk

    def _remaining_events(self, store: Store, dag: Dag) -> dict[int, list[int]]:
        """Return, by asset, the DAG's waiting events, without events that this transaction has taken."""
        return {
            asset: left
            for asset, events in store.waiting(dag).items()
            if (left := [one for one in events if (dag.dag_id, one) not in self._taken_by])
        }

    # The commit

    def apply(self, store: Store) -> None:
        """Make all writes durable at once."""
        for dag, state in self._changed:
            if store.times is not None:
                store.times.on_changed(dag, state)
            store.dags[dag.dag_id], store.states[dag.dag_id] = dag, state
            store.versions[dag.dag_id] += 1
        self._apply_runs(store)
        for dag_id, info, made_at, decided_at in self._next_runs:
            state = store.states[dag_id]
            if store.times is not None:
                store.times.on_next_run(dag_id, info, decided_at)
            store.states[dag_id] = replace(
                state, next_run=info, last_run_at=made_at or state.last_run_at
            )
            store.versions[dag_id] += 1

    def _apply_runs(self, store: Store) -> None:
        checker = store.checker
        by_pk = {run.pk: run for run in self._created}
        for (dag_id, event), pk in self._taken_by.items():
            if store.queues[dag_id][event] is None:
                # The event is still free at the commit. The real store's UPDATE also checks this, after it has waited
                # for other transactions.
                store.queues[dag_id][event] = pk
                by_pk[pk].events.append(event)
        for run in self._created:
            dag = store.dags[run.dag_id]
            counts: dict[int, int] = {}
            for event in run.events:
                asset = store.events[event]
                counts[asset] = counts.get(asset, 0) + 1
            takes_events = run.run_type is RunType.ASSET_TRIGGERED
            if isinstance(dag.on, OnPartitions):
                run.events = store.partitions[run.dag_id].of_run(run.pk)
            elif takes_events and not store.is_due(dag, counts):
                checker.fail(
                    "S4", f"a run of {run.dag_id} took {run.events}, which do not make it due"
                )
            if dag.events_per_run and max(counts.values(), default=0) > dag.events_per_run:
                checker.fail("S4", f"a run of {run.dag_id} took {counts} events by asset")
            if store.active_runs(run.dag_id) >= dag.max_active_runs:
                checker.fail("S9", f"{run.dag_id} has more than {dag.max_active_runs} active runs")
            if store.times is not None:
                store.times.on_run(dag, store.states[run.dag_id], run)
            store.runs[run.pk] = run
            if takes_events:
                state = store.states[run.dag_id]
                store.states[run.dag_id] = replace(state, last_run_at=run.made_at)
            store.versions[run.dag_id] += 1


def _dag_columns(store: Store, dag: Dag) -> Row:
    """A DAG's columns, in the order of `triggerer.store.dags.snapshots`."""
    dag_id, state, now = dag.dag_id, store.states[dag.dag_id], store.now()
    plain: Row = (dag_id, orjson.dumps(schedule_to_json(dag.on)).decode(), "{}")
    bounds = (dag.max_active_runs, dag.events_per_run, state.is_paused, state.is_stale)
    time = (dag.start_date, dag.end_date, dag.catchup)
    holds = (dag.min_run_gap_s, dag.quiet_period_s, dag.depends_on_past)
    info, last = state.next_run, last_automated(store, dag_id)
    keys_due = store.partitions[dag_id].next_at
    upcoming = (keys_due, None, None) if info is None else (info.run_after, *info.data_interval)
    version, active = _version(store, dag_id), store.active_runs(dag_id)
    automated = past = None
    if last is not None and last.interval is not None:
        automated = [last.run_after, *last.interval]
    if dag.depends_on_past:
        runs = _runs_of(store, dag_id)
        past = [runs[-1].run_id, "success" if runs[-1].is_ended else "queued"] if runs else None
    made = [
        [*run.interval]
        for run in _runs_of(store, dag_id)
        if run.interval is not None
        and run.run_type is RunType.ASSET_TRIGGERED
        and (last is None or last.interval is None or run.interval.end > last.interval.start)
    ]
    kind = None
    if isinstance(dag.on, OnEither):
        kinds = [str(run.run_type) for run in _runs_of(store, dag_id)]
        kind = kinds[-1] if kinds else None
    read = (*upcoming, state.last_run_at, now, version, active, automated, made, past, kind)
    return (*plain, *bounds, *time, *holds, *read)


def _version(store: Store, dag_id: str) -> str:
    """Return the version of a DAG's row, and the present time by both clocks (see `ReadAt`)."""
    return " ".join((str(store.versions[dag_id]), *(at.isoformat() for at in _now(store))))


def _now(store: Store) -> ReadAt:
    here = store.now()
    # Hosts have their own clocks only in worlds with timetables. In other worlds the database's time counts.
    return ReadAt(here, here if store.times is None else host_now())


def _is_as_read(store: Store, dag_id: str, version: str) -> bool:
    return version.split()[0] == str(store.versions[dag_id])


def _read_at(version: str) -> ReadAt:
    return ReadAt(*map(datetime.fromisoformat, version.split()[1:]))


def last_automated(store: Store, dag_id: str) -> Run | None:
    """Return the timetable's last run that is due now or within `CLOCK_STEP`."""
    soon = store.now() + CLOCK_STEP
    asked = [run for run in _runs_of(store, dag_id) if run.interval and run.run_after <= soon]
    return max(reversed(asked), key=lambda run: run.run_after, default=None)


def _runs_of(store: Store, dag_id: str) -> list[Run]:
    """All runs of a DAG, the newest last."""
    return [run for pk, run in sorted(store.runs.items()) if run.dag_id == dag_id]


async def find_candidates(session: Locks) -> list[str]:
    """Return the DAGs with waiting events, as `triggerer.store.dags.candidates` finds them."""
    store = session.store
    await store.faults.delay()
    return [
        dag_id
        for dag_id, dag in store.dags.items()
        if _may_run(store.states[dag_id]) and store.waiting(dag)
    ]


async def find_due_times(session: Locks) -> DueTimes:
    """Return the DAGs with a due time from a timetable or a partition key, like `triggerer.store.dags.candidates`."""
    store = session.store
    await store.faults.delay()
    due = {
        dag_id: state.next_run.run_after
        for dag_id, state in store.states.items()
        if _may_run(state) and state.next_run is not None
    }
    keys_due = {
        dag_id: rows.next_at
        for dag_id, rows in store.partitions.items()
        if _may_run(store.states[dag_id]) and rows.next_at < NEVER
    }
    due.update(keys_due)
    return DueTimes(store.now(), dict(sorted(due.items(), key=lambda one: (one[1], one[0]))))


def _may_run(state: DagState) -> bool:
    return not state.is_paused and not state.is_stale
