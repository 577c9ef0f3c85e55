"""Queues many ended runs again, in batches. Each batch has its own transaction."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.actors import Actor
from triggerer.errors import DagError, MoveRefused, UnknownDag
from triggerer.operations.runs import check_tasks, clear_run, refuse_stale, retry_run
from triggerer.store.dags.listing import list_dags
from triggerer.store.database.transactions import Database
from triggerer.store.listing.views import DagView
from triggerer.store.runs.ended import (
    EndedRun,
    EndedRuns,
    count_ended,
    next_ended,
)

_AT_ONCE: Final = 20
"""The most runs in one transaction. A transaction with 20 runs keeps SQLite's other writers waiting for 0.1 s."""


@dataclass(frozen=True, slots=True)
class RepeatedRun:
    """The outcome, real or planned, for one of the runs that an operator wants to repeat."""

    dag_id: str
    run_id: str
    run_after: datetime
    former_state: str
    refused: str | None
    """Why the run cannot be queued again; None: the run is queued again."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The ended runs that match an operator's choice, such as a state. Runs created after `choose` are left out."""

    choice: EndedRuns
    runs: int
    dags: int
    up_to: int
    """The highest primary key among these runs."""


async def choose(session: AsyncSession, choice: EndedRuns) -> Chosen:
    """Return the runs that match a choice at this moment, and their number.

    Raises:
        UnknownDag: The choice names an unknown DAG.
    """
    if choice.dag is not None and not await list_dags(session, dag=choice.dag, limit=1):
        raise UnknownDag(choice.dag)
    return Chosen(choice, *await count_ended(session, choice))


async def repeat_runs(
    database: Database, actor: Actor, chosen: Chosen, *, clear: bool, tasks: Collection[str] = ()
) -> AsyncIterator[Sequence[RepeatedRun]]:
    """Queue the chosen runs again, oldest first. After each commit, yield the outcomes of a batch.

    - If a run cannot be repeated, its outcome says why, and the other runs are still repeated.
    - A run that another request has queued again since `choose` is skipped.
    - If a batch fails, the earlier batches stay committed, and another call can repeat the remaining runs.

    Args:
        clear: True: clear the tasks in `tasks`, as `clear_run` does. False: retry the run, as `retry_run` does.
    Raises:
        StoreError: A batch could not be written. None of its runs was changed.
    """

    async def repeat(session: AsyncSession, run: EndedRun) -> None:
        if clear:
            await clear_run(session, actor, run.dag_id, run.run_id, tasks=tasks)
        else:
            await retry_run(session, actor, run.dag_id, run.run_id)

    after = 0
    while True:
        async with database.transaction() as session:
            runs = await _next(session, chosen, after, lock=True)
            outcomes = [await _outcome(repeat, session, run) for run in runs]
        if not runs:
            return
        yield outcomes
        after = runs[-1].pk


async def plan_repeats(
    database: Database, chosen: Chosen, *, tasks: Collection[str] = ()
) -> AsyncIterator[Sequence[RepeatedRun]]:
    """Yield, in batches, the outcomes that `repeat_runs` would have, and change nothing."""
    dags: dict[str, DagView] = {}

    async def check(session: AsyncSession, run: EndedRun) -> None:
        if run.dag_id not in dags:
            (dags[run.dag_id],) = await list_dags(session, dag=run.dag_id, limit=1)
        dag = dags[run.dag_id]
        refuse_stale(run.dag_id, is_stale=dag.is_stale, path=dag.path)
        check_tasks(run.dag_id, dag.tasks, tasks)

    after = 0
    while True:
        async with database.reading() as session:
            runs = await _next(session, chosen, after, lock=False)
            outcomes = [await _outcome(check, session, run) for run in runs]
        if not runs:
            return
        yield outcomes
        after = runs[-1].pk


async def _next(
    session: AsyncSession, chosen: Chosen, after: int, *, lock: bool
) -> Sequence[EndedRun]:
    return await next_ended(
        session, chosen.choice, after=after, up_to=chosen.up_to, limit=_AT_ONCE, lock=lock
    )


async def _outcome(
    do: Callable[[AsyncSession, EndedRun], Awaitable[None]], session: AsyncSession, run: EndedRun
) -> RepeatedRun:
    refused = None
    try:
        await do(session, run)
    except (DagError, MoveRefused) as error:
        # These errors are raised before the run is changed, so the batch can continue.
        refused = error.message
    return RepeatedRun(run.dag_id, run.run_id, run.run_after, run.state, refused)
