"""Planning for one DAG without a lock, on PostgreSQL: optimistic concurrency control on the DAG's row."""

from __future__ import annotations

from dataclasses import replace

from triggerer.domain.runs import RunType
from triggerer.errors import OutcomeUnknown
from triggerer.scheduler.dividing import is_partitioned
from triggerer.scheduler.looks import NewRun
from triggerer.scheduler.plan import BOUND, Plan, evaluate, is_noted, selection_of
from triggerer.store.engine.database import Database
from triggerer.store.queries.scheduling.new_run import CreateRun, Unchanged
from triggerer.store.queries.scheduling.reading import DagRow, ReadDags, dag_rows
from triggerer.store.wakeups.signals import Announced, Signal


class OptimisticPlanner:
    """Plans for one DAG in two round trips; a transaction with a lock takes four.

    It looks, and makes the run unless the DAG's row has changed since: every plan that makes a run changes it, and so
    does every change of the DAG. What may happen beside, events that come and runs that end, makes no run wrong.
    """

    def __init__(self, database: Database, *, limit: int) -> None:
        self._database = database
        self._limit = limit

    async def plan(self, dag_id: str) -> Plan | None:
        """Create the run that is due, if there is one. None: it takes a transaction with a lock.

        Raises:
            StoreError: As `Database.perform_step`. The run may exist where the outcome is unknown.
        """
        rows = dag_rows(await self._database.perform_step(ReadDags([dag_id], BOUND)))
        if rows and is_partitioned(rows[0].schedule):
            return None
        plan = evaluate(rows, [dag_id], limit=self._limit)
        if not plan.looks:
            return plan
        (found,) = plan.looks
        if not found.runs:
            return plan if is_noted(found, rows[0]) else None
        run = found.runs[0]
        if len(found.runs) > 1 or run.info is not None or not is_noted(found, rows[0]):
            return None
        return replace(plan, runs_created=1) if await self._make(run, rows[0]) else None

    async def _make(self, run: NewRun, row: DagRow) -> bool:
        """Create the run unless the DAG's row has changed; return whether it was created."""
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
            made = await self._database.perform_step(step)
        except OutcomeUnknown:
            # It may have committed. An unnecessary wakeup does no harm.
            await self._database.announce_here(announced)
            raise
        if made:
            await self._database.announce_here(announced)
        return bool(made)
