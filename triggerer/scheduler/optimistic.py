"""Planning for one DAG without a lock, on PostgreSQL: optimistic concurrency control on the DAG's row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from triggerer.domain.runs import RunType
from triggerer.errors import OutcomeUnknown
from triggerer.scheduler.decide import Decisions, RunsToCreate
from triggerer.scheduler.plan import BOUND, Plan, evaluate, selection_of
from triggerer.store.engine.database import Database
from triggerer.store.queries.scheduling.candidates import SNAPSHOT, WaitingRow, waiting_rows
from triggerer.store.queries.scheduling.new_run import CreateRun, Unchanged
from triggerer.store.wakeups.signals import Announced, Signal

_MAX_REMEMBERED: Final = 1_000
"""DAGs; a kilobyte or so each."""


@dataclass(frozen=True, slots=True)
class _Due:
    """A run that is to be created if nobody has changed the DAG's row since it was read."""

    run: RunsToCreate
    params: Mapping[str, Any]
    unchanged: Unchanged
    is_lasting: bool
    """Whether events of the same assets make the next run due: it takes all that waits, and there is no alias."""


class OptimisticPlanner:
    """Plans for one DAG in one or two round trips; a transaction with a lock takes four.

    The first time, it reads the queue, and creates the run unless the DAG's row has changed since. It remembers which
    assets made the run due, and tries to create the next one without reading: events of these assets are enough, and
    others cannot make the expression false. The statement checks that the row is as it was, that these assets have
    events again, and that the DAG may have one more run. If it creates none, the queue is read again.
    """

    def __init__(self, database: Database, *, limit: int) -> None:
        self._database = database
        self._limit = limit
        self._remembered: dict[str, _Due] = {}

    async def plan(self, dag_id: str) -> Plan | None:
        """Create the run that is due, if there is one. None: it takes a transaction with a lock.

        Raises:
            StoreError: As `Database.perform_step`. The run may exist where the outcome is unknown.
        """
        remembered = self._remembered.get(dag_id)
        if remembered is not None and await self._make(remembered):
            return Plan(Decisions((remembered.run,), recheck=()), (dag_id,), {}, runs_created=1)
        rows = waiting_rows(
            await self._database.perform_step(SNAPSHOT(dag_ids=[dag_id], bound=BOUND))
        )
        plan = evaluate(rows, [dag_id], limit=self._limit)
        if not plan.decisions.runs:
            return plan
        (run,) = plan.decisions.runs
        if run.count > 1 or not await self._make(self._due(run, rows)):
            return None
        return replace(plan, runs_created=1)

    def _due(self, run: RunsToCreate, rows: Sequence[WaitingRow]) -> _Due:
        row = rows[0]
        assert row.version is not None
        is_lasting = run.events_per_run is None and all(row.alias is None for row in rows)
        return _Due(
            run, row.params, Unchanged(row.version, self._database.transport.sender), is_lasting
        )

    async def _make(self, due: _Due) -> bool:
        """Create the run unless the DAG's row has changed; return whether it was created."""
        run = due.run
        step = CreateRun(
            run.dag_id,
            RunType.ASSET_TRIGGERED,
            due.params,
            run_after=None,
            run_id=None,
            selection=selection_of(run),
            unchanged=due.unchanged,
        )
        announced: Announced = {Signal.RUNS_QUEUED: {run.dag_id}}
        try:
            made = await self._database.perform_step(step)
        except OutcomeUnknown:
            # It may have committed. An unnecessary wakeup does no harm.
            await self._database.announce_here(announced)
            raise
        if not made:
            return False
        await self._database.announce_here(announced)
        ((*_, version),) = made
        self._remember(due, version)
        return True

    def _remember(self, due: _Due, version: str) -> None:
        self._remembered.pop(due.run.dag_id, None)
        if due.is_lasting:
            unchanged = replace(due.unchanged, version=version, waits_for=due.run.asset_ids)
            self._remembered[due.run.dag_id] = replace(due, unchanged=unchanged)
            if len(self._remembered) > _MAX_REMEMBERED:
                del self._remembered[next(iter(self._remembered))]
