"""Plans runs without a lock, on PostgreSQL, by optimistic concurrency control on the rows of the DAGs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from triggerer.domain.runs import RunType
from triggerer.errors import OutcomeUnknown
from triggerer.scheduler.looks import Look, NewRun
from triggerer.scheduler.plan import (
    BOUND,
    Plan,
    evaluate,
    is_next_run_stored,
    plan_locked,
    selection_of,
)
from triggerer.store.dags.snapshots import DagRow, ReadDags, dag_rows
from triggerer.store.database.transactions import Database
from triggerer.store.database.wakeups.signals import Announced, Signal
from triggerer.store.runs.creation.create_run_step import CreateRun, Unchanged
from triggerer.store.runs.creation.planned_runs import (
    CreateRuns,
    NextRun,
    PlannedDag,
    PlannedRun,
)


class OptimisticPlanner:
    """Plans one DAG or many in two round trips to the database. A lock would need three, and one more for each run.

    A DAG's runs are created only if its row has not changed since the look. Each change of the DAG changes the row, and
    so does each plan that creates a run. New events and ended runs need not change the row: the plan stays right.
    """

    def __init__(self, database: Database, *, limit: int) -> None:
        self._database = database
        self._limit = limit

    async def plan(self, dag_id: str) -> Plan | None:
        """Create the DAG's run if exactly one run is due and this run is event-driven.

        Returns:
            The plan. None: no run was created, and the caller must plan the DAG under a lock, for
            example because a timed run is due.

        Raises:
            StoreError: The database failed, and no run was created. After `OutcomeUnknown`, the run may exist.
        """
        rows = dag_rows(await self._database.perform_step(ReadDags([dag_id], BOUND)))
        if rows and rows[0].is_partitioned:
            return None
        plan = evaluate(rows, [dag_id], limit=self._limit)
        if not plan.looks:
            return plan
        (found,) = plan.looks
        if not found.runs:
            return plan if is_next_run_stored(found, rows[0]) else None
        run = found.runs[0]
        if len(found.runs) > 1 or run.info is not None or not is_next_run_stored(found, rows[0]):
            return None
        return replace(plan, runs_created=1) if await self._create(run, rows[0]) else None

    async def plan_many(self, dag_ids: Sequence[str]) -> Plan:
        """Create the due runs of these DAGs. Partitioned DAGs are planned in a transaction that locks their rows.

        `Plan.locked` lists the DAGs that must be planned again, because another transaction locked or changed them.

        Raises:
            StoreError: The database failed. Some of the runs may exist.
        """
        rows = dag_rows(await self._database.perform_step(ReadDags(dag_ids, BOUND)))
        partitioned = {row.dag_id for row in rows if row.is_partitioned}
        if not partitioned:
            return await self._plan_as_read(rows, dag_ids)
        plain = [dag_id for dag_id in dag_ids if dag_id not in partitioned]
        plan = await self._plan_as_read([row for row in rows if row.dag_id in plain], plain)
        others = [dag_id for dag_id in dag_ids if dag_id in partitioned]
        return plan.combined_with(
            await self._database.perform(plan_locked(others, limit=self._limit, waits=False))
        )

    async def _plan_as_read(self, rows: Sequence[DagRow], dag_ids: Sequence[str]) -> Plan:
        plan = evaluate(rows, dag_ids, limit=self._limit)
        by_dag = {row.dag_id: row for row in rows}
        planned = [
            dag
            for found in plan.looks
            if (dag := _planned(found, by_dag[found.dag_id])) is not None
        ]
        if not planned:
            return plan
        created = await self._create_all(planned)
        lost = tuple(dag.dag_id for dag in planned if dag.dag_id not in created)
        return replace(
            plan,
            looks=tuple(
                _with_created(one, created) for one in plan.looks if one.dag_id not in lost
            ),
            locked=lost,
            runs_created=sum(created.values()),
        )

    async def _create(self, run: NewRun, row: DagRow) -> bool:
        """Create the run unless the DAG's row has changed; return whether the run was created."""
        assert row.version is not None
        step = CreateRun(
            run.dag_id,
            RunType.ASSET_TRIGGERED,
            row.params,
            run_after=None,
            run_id=None,
            selection=selection_of(run),
            unchanged=Unchanged(row.version, self._database.transport.sender),
        )
        announced: Announced = {Signal.RUNS_QUEUED: {run.dag_id}}
        try:
            created = await self._database.perform_step(step)
        except OutcomeUnknown:
            # The transaction may have committed. An unnecessary wake-up does no harm.
            await self._database.announce_here(announced)
            raise
        if created:
            await self._database.announce_here(announced)
        return bool(created)

    async def _create_all(self, planned: Sequence[PlannedDag]) -> dict[str, int]:
        """Create the planned runs; return the number of new runs of each DAG whose row has not changed."""
        step = CreateRuns(planned, self._database.transport.sender)
        with_runs = {dag.dag_id for dag in planned if dag.runs}
        try:
            created: dict[str, int] = dict(await self._database.perform_step(step))  # type: ignore[arg-type]
        except OutcomeUnknown:
            # The transaction may have committed. An unnecessary wake-up does no harm.
            await self._database.announce_here({Signal.RUNS_QUEUED: with_runs} if with_runs else {})
            raise
        if queued := {dag_id for dag_id, number in created.items() if number}:
            await self._database.announce_here({Signal.RUNS_QUEUED: queued})
        return created


def _planned(found: Look, row: DagRow) -> PlannedDag | None:
    """Return what to write for a DAG, or None if there is nothing to write."""
    is_shown = is_next_run_stored(found, row)
    if is_shown and not found.runs:
        return None
    assert row.version is not None
    info = found.next_info
    next_run = NextRun(info.run_after, info.data_interval) if info else NextRun(None, None)
    runs = tuple(
        PlannedRun(
            run.run_type,
            selection_of(run),
            run.run_after,
            None if run.info is None else run.info.logical_date,
            None if run.info is None else run.info.data_interval,
            run.partition_key,
        )
        for run in found.runs
    )
    return PlannedDag(found.dag_id, row.version, runs, None if is_shown else next_run)


def _with_created(found: Look, created: dict[str, int]) -> Look:
    """Mark a DAG for another look if fewer runs were created than planned.

    A planned run is not created if the DAG already has a run with the same id. The events for the planned run are then
    still queued.
    """
    is_short = created.get(found.dag_id, len(found.runs)) < len(found.runs)
    return replace(found, is_cut_short=True) if is_short else found
