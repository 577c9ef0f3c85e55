"""Plans the runs of several DAGs: looks at each DAG, and creates the due runs in one transaction, under locks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from triggerer.domain.runs import RunType
from triggerer.scheduler.decide import allot, look
from triggerer.scheduler.dividing import NOTHING_DIVIDED, Divided, divide_all
from triggerer.scheduler.looks import Look, NewRun
from triggerer.scheduler.snapshots import rows_by_dag, snapshot_of
from triggerer.store.dags.candidates import lock_and_read
from triggerer.store.dags.due_moments import StoreNextRun
from triggerer.store.dags.snapshots import DagRow
from triggerer.store.database.script import Announcement, Script
from triggerer.store.database.wakeups.signals import Signal
from triggerer.store.partitions.keys import StoreNextKey, TakePartition
from triggerer.store.runs.creation.create_run import create_run
from triggerer.store.runs.creation.create_run_step import CreateRun, EventSelection

# A snapshot counts at most 1,000 queued events of each asset. If an asset has more, further runs may be due
# (`events_per_run`). So the scheduler creates the runs that it has found, and then looks at the DAG again.
BOUND: Final = 1_000
_TICK: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Plan:
    """The looks at some DAGs, and the number of runs that were created."""

    looks: tuple[Look, ...] = ()
    """One look for each DAG, in the order of the given DAGs."""
    locked: tuple[str, ...] = ()
    """DAGs that were skipped, because another transaction had locked their rows, or changed them after the look."""
    unserved: tuple[str, ...] = ()
    """DAGs that are due but got no run, because the limit was used up."""
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """DAG id to the error."""
    now: datetime | None = None
    """When the rows were read, by the database's clock. None: no row was read."""
    runs_created: int = 0

    def combined_with(self, other: Plan) -> Plan:
        """Return this plan together with one for other DAGs."""
        return Plan(
            self.looks + other.looks,
            self.locked + other.locked,
            self.unserved + other.unserved,
            {**self.unreadable, **other.unreadable},
            self.now or other.now,
            self.runs_created + other.runs_created,
        )


def evaluate(
    rows: Sequence[DagRow],
    dag_ids: Sequence[str],
    *,
    limit: int,
    divided: Divided = NOTHING_DIVIDED,
) -> Plan:
    """Look at the DAGs in `rows`, and share `limit` runs among them in the order of `dag_ids`.

    Args:
        divided: The partition queues of the partitioned DAGs.
    """
    looks: dict[str, Look] = {}
    unreadable: dict[str, str] = dict(divided.unreadable)
    groups = list(rows_by_dag(rows))
    for at_most in _runs_per_round(limit, len(groups)):
        # The second round uses the part of the limit that the first round leaves. It looks again at the DAGs that have
        # more due runs than the first round allows.
        left = limit - sum(len(found.runs) for found in looks.values())
        for group in groups if left > 0 else ():
            dag_id = group[0].dag_id
            if dag_id in unreadable or (dag_id in looks and not looks[dag_id].is_cut_short):
                continue
            try:
                snapshot = snapshot_of(group, divided.queues.get(dag_id))
                looks[dag_id] = look(snapshot, at_most=at_most, bound=BOUND)
            except Exception as error:  # noqa: BLE001  (the boundary to users' timetables)
                looks.pop(dag_id, None)
                unreadable[dag_id] = str(error) or repr(error)
    wanted = [looks[dag_id] for dag_id in dag_ids if dag_id in looks]
    allotted = allot(wanted, limit=limit)
    unserved = (
        found.dag_id
        for found, asked in zip(allotted, wanted, strict=True)
        if asked.runs and not found.runs
    )
    return Plan(
        tuple(allotted),
        unserved=tuple(unserved),
        unreadable=unreadable,
        now=rows[0].now if rows else None,
    )


def _runs_per_round(limit: int, dags: int) -> list[int]:
    """Return the most runs that a look may find, for each round of looks.

    In the first round, each DAG gets an equal part of the limit, but at least 2 runs, to see if a second run is due.
    The second round is for DAGs with more due runs.

    In a single round, each look would find up to `limit` runs. The plan would drop most of them, because it creates
    only `limit` runs in all. Each found run costs a call of a timetable. With 32 DAGs and a limit of 32, these calls
    took half of the plan's time.
    """
    share = max(2, math.ceil(limit / max(dags, 1)))
    return [share, limit] if share < limit else [limit]


def plan_locked(dag_ids: Sequence[str], *, limit: int, waits: bool = True) -> Script[Plan]:
    """Lock these DAGs, and create the runs that are due.

    Args:
        waits: True to wait for rows that others have locked; False to skip them.
    """
    rows = yield from lock_and_read(dag_ids, bound=BOUND, waits=waits)
    divided = yield from divide_all(rows, limit=limit)
    plan = evaluate(rows, dag_ids, limit=limit, divided=divided)
    by_dag = {row.dag_id: row for row in rows}
    created = 0
    for found in plan.looks:
        created += yield from _carry_out(found, by_dag[found.dag_id])
    locked = () if waits else tuple(dag_id for dag_id in dag_ids if dag_id not in by_dag)
    return Plan(plan.looks, locked, plan.unserved, plan.unreadable, plan.now, created)


def selection_of(run: NewRun) -> EventSelection | None:
    """Return which events the run takes; None: it takes no events."""
    if run.run_type is RunType.SCHEDULED:
        return None
    each = run.events_per_run
    return EventSelection(each, () if each is None else run.asset_ids)


def is_next_run_stored(found: Look, row: DagRow) -> bool:
    """True if the DAG's row already names the timetable's next run, so that this run need not be stored."""
    info = found.next_info
    shown = (row.next_interval_start, row.next_interval_end)
    if info is None:
        return shown == (None, None)
    return (row.next_run_after, *shown) == (info.run_after, *info.data_interval)


def _carry_out(found: Look, row: DagRow) -> Script[int]:
    if row.is_partitioned:
        return (yield from _carry_out_partitions(found, row))
    created, least = 0, None
    for run in found.runs:
        if run.run_type is RunType.SCHEDULED:
            created += yield from _create_scheduled(run, row.params)
            continue
        interval = None if run.info is None else run.info.data_interval
        made = yield from create_run(
            run.dag_id,
            run_type=run.run_type,
            run_after=least,
            params=row.params,
            selection=selection_of(run),
            logical_date=None if run.info is None else run.info.logical_date,
            interval=interval,
            partition_key=run.partition_key,
        )
        # Each run gets a later `run_after` than the run before it. A run's id contains `run_after`, so the ids differ.
        # The runs stay in the order of their events.
        least = made.run_after + _TICK
        created += 1
    has_scheduled = any(run.run_type is RunType.SCHEDULED for run in found.runs)
    if has_scheduled or not is_next_run_stored(found, row):
        info = found.next_info
        yield StoreNextRun(
            found.dag_id,
            None if info is None else info.run_after,
            None if info is None else info.data_interval,
            has_run=has_scheduled,
        )
    return created


def _carry_out_partitions(found: Look, row: DagRow) -> Script[int]:
    least = None
    for run in found.runs:
        assert run.partition_key is not None
        made = yield from create_run(
            run.dag_id,
            run_type=run.run_type,
            run_after=least,
            params=row.params,
            partition_key=run.partition_key,
        )
        least = made.run_after + _TICK
        yield TakePartition(run.dag_id, run.partition_key, made.pk)
    yield StoreNextKey(found.dag_id, has_run=bool(found.runs))
    return len(found.runs)


def _create_scheduled(run: NewRun, params: Mapping[str, Any]) -> Script[int]:
    """Create the run; return 1, or 0 if the DAG already has a run with this id."""
    info = run.info
    assert info is not None
    step = CreateRun(
        run.dag_id,
        run.run_type,
        params,
        info.run_after,
        run_id=None,
        selection=None,
        logical_date=info.logical_date,
        interval=info.data_interval,
        partition_key=run.partition_key,
    )
    if not (yield step):
        return 0
    yield Announcement(Signal.RUNS_QUEUED, (run.dag_id,))
    return 1
