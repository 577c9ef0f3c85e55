"""Queues many ended runs again, a batch at a time, each batch in a transaction of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.actors import Actor
from triggerer.errors import DagError, MoveRefused, UnknownDag
from triggerer.operations.runs import check_tasks, clear_run, refuse_gone, retry_run
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
"""Runs in one transaction. They take a tenth of a second of SQLite's write lock, while the service waits."""


@dataclass(frozen=True, slots=True)
class RepeatedRun:
    """The outcome, or the planned outcome, for one run that somebody wants to queue again."""

    dag_id: str
    run_id: str
    run_after: datetime
    former_state: str
    refused: str | None
    """Why the run stays as it is. None: it is queued again."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The runs that match a choice at one moment. Later runs do not belong to it."""

    choice: EndedRuns
    runs: int
    dags: int
    up_to: int
    """The highest primary key among them."""


async def choose(session: AsyncSession, choice: EndedRuns) -> Chosen:
    """Count the runs that match a choice now.

    Raises:
        UnknownDag: The choice names an unknown DAG.
    """
    if choice.dag is not None and not await list_dags(session, dag=choice.dag, limit=1):
        raise UnknownDag(choice.dag)
    return Chosen(choice, *await count_ended(session, choice))


async def repeat_runs(
    database: Database, actor: Actor, chosen: Chosen, *, clear: bool, tasks: Collection[str] = ()
) -> AsyncIterator[Sequence[RepeatedRun]]:
    """Queue the chosen runs again, oldest first; yield the outcomes of each batch once it is committed.

    If a run cannot be repeated, only that run is refused. A run that somebody else has queued again is skipped. If a
    later batch fails, the yielded batches are done, and the choice then matches the remaining runs.

    Args:
        clear: True to do as `clear_run` with these tasks; False to do as `retry_run`.
    Raises:
        StoreError: A batch could not be written; nothing of it was.
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
    """Yield the outcomes of `repeat_runs` in batches, and change nothing."""
    dags: dict[str, DagView] = {}

    async def check(session: AsyncSession, run: EndedRun) -> None:
        if run.dag_id not in dags:
            (dags[run.dag_id],) = await list_dags(session, dag=run.dag_id, limit=1)
        dag = dags[run.dag_id]
        refuse_gone(run.dag_id, is_stale=dag.is_stale, path=dag.path)
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
        # Both are raised before any change to the run.
        refused = error.message
    return RepeatedRun(run.dag_id, run.run_id, run.run_after, run.state, refused)
