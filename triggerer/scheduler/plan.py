"""Planning for DAGs: from the rows of the database to decisions, and the transaction that does it under a lock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import groupby
from typing import Any, Final

from triggerer.domain.conditions import condition_from_json
from triggerer.domain.runs import RunType
from triggerer.errors import DagError
from triggerer.scheduler.decide import DagSnapshot, Decisions, RunsToCreate, WaitingAsset, decide
from triggerer.store.engine.script import Script
from triggerer.store.queries.scheduling.candidates import WaitingRow, create_run, lock_and_read
from triggerer.store.queries.scheduling.new_run import EventSelection

# Queued events of one asset are counted up to this number; a DAG with more is planned for again.
BOUND: Final = 1_000
_TICK: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Plan:
    """What was decided for some DAGs, and how many runs were created."""

    decisions: Decisions
    readable: tuple[str, ...]
    unreadable: Mapping[str, str]
    """DAG id to the reason."""
    runs_created: int = 0


def evaluate(rows: Sequence[WaitingRow], dag_ids: Sequence[str], *, limit: int) -> Plan:
    """Decide by what `SNAPSHOT` has read of these DAGs, in this order."""
    snapshots, unreadable = _read(rows)
    order = {dag_id: index for index, dag_id in enumerate(dag_ids)}
    snapshots.sort(key=lambda dag: order[dag.dag_id])
    decisions = decide(snapshots, limit=limit, bound=BOUND)
    return Plan(decisions, tuple(dag.dag_id for dag in snapshots), unreadable)


def plan_locked(dag_ids: Sequence[str], *, limit: int) -> Script[Plan]:
    """Lock these DAGs, and create the runs that are due."""
    rows = yield from lock_and_read(dag_ids, bound=BOUND)
    plan = evaluate(rows, dag_ids, limit=limit)
    params = {row.dag_id: row.params for row in rows}
    for due in plan.decisions.runs:
        yield from _create(due, params[due.dag_id])
    return replace(plan, runs_created=sum(due.count for due in plan.decisions.runs))


def selection_of(due: RunsToCreate) -> EventSelection:
    """Return which events each of these runs takes."""
    return EventSelection(
        due.events_per_run, () if due.events_per_run is None else tuple(due.asset_ids)
    )


def _create(due: RunsToCreate, params: Mapping[str, Any]) -> Script[None]:
    run_after = None
    for _ in range(due.count):
        run = yield from create_run(
            due.dag_id,
            run_type=RunType.ASSET_TRIGGERED,
            run_after=run_after,
            params=params,
            selection=selection_of(due),
        )
        # In the order of their events, and each with an id of its own at the first try.
        run_after = run.run_after + _TICK


def _read(rows: Iterable[WaitingRow]) -> tuple[list[DagSnapshot], dict[str, str]]:
    """Return the snapshot for `decide`, and why some DAGs are not in it."""
    snapshots: list[DagSnapshot] = []
    unreadable: dict[str, str] = {}
    for dag_id, group in groupby(rows, key=lambda row: row.dag_id):
        waiting = list(group)
        first = waiting[0]
        try:
            condition = condition_from_json(first.schedule)
        except DagError as error:
            unreadable[dag_id] = str(error)
            continue
        snapshots.append(
            DagSnapshot(
                dag_id,
                condition,
                first.max_active_runs,
                first.active_runs,
                first.events_per_run,
                _waiting_assets(waiting),
            )
        )
    return snapshots, unreadable


def _waiting_assets(rows: Sequence[WaitingRow]) -> tuple[WaitingAsset, ...]:
    assets = []
    for asset_id, group in groupby(rows, key=lambda row: row.asset_id):
        same = list(group)
        aliases = frozenset(row.alias for row in same if row.alias is not None)
        first = same[0]
        assets.append(WaitingAsset(asset_id, first.name, first.uri, first.queued, aliases))
    return tuple(assets)
