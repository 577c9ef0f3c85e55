"""Finds old runs and the reasons to keep them, and deletes runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from sqlalchemy import ColumnElement, delete, func, select, text, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from triggerer.domain.runs import RunType
from triggerer.store.database.script import perform, single_step
from triggerer.store.database.statement import Statement, in_list
from triggerer.store.schema.models import (
    BackfillInterval,
    BackfillKey,
    Dag,
    DagPartitionEvent,
    DagRun,
    QueuedAssetEvent,
    RunAttempt,
    RunLaunch,
    TaskRun,
)

_ENDED: Final = text("dag_run.state IN ('success', 'failed', 'cancelled')")
_AUTOMATED: Final = text(
    "dag_run.logical_date IS NOT NULL AND dag_run.run_type IN ('scheduled', 'asset_triggered')"
)
_AUTOMATIC_TYPES: Final = (RunType.SCHEDULED, RunType.ASSET_TRIGGERED)

# This query makes one look-up by event id for each event that a run has taken. Without statistics, the planners of the
# databases would choose an index whose first column is the DAG, and read all events that wait for the DAG. Such an
# index cannot serve the conditions `w.dag_id || ''` and `coalesce(...)`.
SHARED: Final = Statement(
    """
SELECT DISTINCT t.run_pk FROM dag_partition_event t
WHERE t.run_pk {IN_RUNS} AND (
    (SELECT 1 FROM dag_partition_event w {HINT}
     WHERE w.asset_event_id = t.asset_event_id AND w.dag_id || '' = t.dag_id AND coalesce(w.run_pk, -1) = -1
     LIMIT 1) IS NOT NULL
    OR (SELECT 1 FROM queued_asset_event q
        WHERE q.asset_event_id = t.asset_event_id AND q.dag_id = t.dag_id AND coalesce(q.run_pk, -1) = -1) IS NOT NULL)
""",
    IN_RUNS=in_list("run_pks", "bigint"),
    HINT=("INDEXED BY ix_dag_partition_event_asset_event_id", ""),
)


class OldRun(NamedTuple):
    """A run that ended long ago."""

    pk: int
    dag_id: str
    run_id: str
    run_type: str
    log_home: str | None
    """The folder of the run's log on the executor's machine. None: the run has no log."""
    logical_date: datetime | None
    data_interval_end: datetime | None
    backfill_id: int | None
    executor: str | None
    """The instance that executed the run last. None: no executor claimed the run."""


@dataclass(frozen=True, slots=True)
class NeededRuns:
    """The old runs of a DAG that the scheduler still reads for its decisions, see `triggerer.store.dags.snapshots`."""

    pks: frozenset[int]
    """The primary keys of single runs that must stay:

    - the newest run,
    - the newest run that is not a backfill's,
    - the newest run of the types `scheduled` and `asset_triggered`,
    - the run from which the timetable continues if the clock is set back. This run has one of these two types, a
      logical date, and the latest `run_after` before the argument `before` of `needed_runs`.
    """
    since: datetime | None
    """The logical date of the run from which the timetable continues, see `pks`. None: there is no such run.

    Runs of the types `scheduled` and `asset_triggered` must stay too, if their logical date or the end of their data
    interval is later than `since`."""

    def includes(self, run: OldRun) -> bool:
        """True if the run is needed."""
        if run.pk in self.pks:
            return True
        if run.run_type not in _AUTOMATIC_TYPES:
            return False
        ends = (run.logical_date, run.data_interval_end)
        return self.since is not None and any(end is not None and end > self.since for end in ends)


async def needed_runs(session: AsyncSession, before: datetime) -> Mapping[str, NeededRuns]:
    """Return, by DAG, the runs that must stay although they ended before the instant `before`."""
    of_dag = DagRun.dag_id == Dag.dag_id

    def newest(*conditions: ColumnElement[bool]) -> ColumnElement[int]:
        return (
            select(DagRun.id)
            .where(of_dag, *conditions)
            .order_by(DagRun.id.desc())
            .limit(1)
            .scalar_subquery()
        )

    last = (
        select(DagRun.id)
        .where(of_dag, _AUTOMATED, DagRun.run_after < before)
        .order_by(DagRun.run_after.desc())
        .limit(1)
        .scalar_subquery()
    )
    rows = await session.execute(
        select(
            Dag.dag_id,
            newest(),
            newest(DagRun.run_type != RunType.BACKFILL),
            newest(DagRun.run_type.in_(_AUTOMATIC_TYPES)),
            last.label("last_pk"),
        )
    )
    pks = {dag_id: frozenset(pk for pk in found if pk is not None) for dag_id, *found in rows}
    run = aliased(DagRun)
    dates = await session.execute(select(Dag.dag_id, run.logical_date).join(run, run.id == last))
    since = {dag_id: date for dag_id, date in dates}  # noqa: C416 (rows are no pairs to a type checker)
    return {dag_id: NeededRuns(found, since.get(dag_id)) for dag_id, found in pks.items()}


async def open_backfills(session: AsyncSession) -> set[int]:
    """Return the backfills that still have runs to create."""
    found: set[int] = set()
    for part in (BackfillInterval, BackfillKey):
        pending = select(part.backfill_id).where(text("state = 'pending'")).distinct()
        found.update(await session.scalars(pending))
    return found


async def old_runs(
    session: AsyncSession, before: datetime, *, after_pk: int, limit: int
) -> list[OldRun]:
    """Return the next old runs, sorted by primary key.

    A run is old if its end and its `run_after` are earlier than `before`, and its callback is neither due nor running.

    Args:
        after_pk: Only runs with higher primary keys than this.
    """
    return await _find(session, after_pk, limit, *_is_old(before))


async def runs_with_old_logs(
    session: AsyncSession, before: datetime, *, after_pk: int, limit: int
) -> list[OldRun]:
    """Return the next runs that ended before `before`, have a log and have no callback left, sorted by primary key.

    Args:
        after_pk: Only runs with higher primary keys than this.
    """
    return await _find(session, after_pk, limit, DagRun.log_home.is_not(None), *_is_over(before))


async def _find(
    session: AsyncSession, after_pk: int, limit: int, *conditions: ColumnElement[bool]
) -> list[OldRun]:
    rows = await session.execute(
        select(
            DagRun.id,
            DagRun.dag_id,
            DagRun.run_id,
            DagRun.run_type,
            DagRun.log_home,
            DagRun.logical_date,
            DagRun.data_interval_end,
            DagRun.backfill_id,
            DagRun.executor,
        )
        .where(DagRun.id > after_pk, *conditions)
        .order_by(DagRun.id)
        .limit(limit)
    )
    return [OldRun(*row) for row in rows]


async def lock_runs_with_old_logs(
    session: AsyncSession, run_pks: Collection[int], before: datetime
) -> set[int]:
    """Lock these runs, and return their primary keys. Runs that have been queued again are left out."""
    return await _lock(session, run_pks, *_is_over(before))


async def lock_old_runs(
    session: AsyncSession, run_pks: Collection[int], before: datetime
) -> set[int]:
    """Lock these runs, and return their primary keys. Runs that have been queued again are left out."""
    return await _lock(session, run_pks, *_is_old(before))


async def _lock(
    session: AsyncSession, run_pks: Collection[int], *conditions: ColumnElement[bool]
) -> set[int]:
    chosen = select(DagRun.id).where(DagRun.id.in_(run_pks), *conditions)
    return set(await session.scalars(chosen.with_for_update(skip_locked=True)))


async def forget_logs(session: AsyncSession, run_pks: Collection[int]) -> None:
    """Store that these runs no longer have a log."""
    await session.execute(update(DagRun).where(DagRun.id.in_(run_pks)).values(log_home=None))


async def count_events(session: AsyncSession, run_pks: Sequence[int]) -> Mapping[int, int]:
    """Return how many events each of these runs has taken. Runs without events are left out."""
    counts: dict[int, int] = {}
    for entry in (QueuedAssetEvent, DagPartitionEvent):
        rows = await session.execute(
            select(entry.run_pk, func.count())
            .where(entry.run_pk.in_(run_pks))
            .group_by(entry.run_pk)
        )
        for run_pk, count in rows:
            assert run_pk is not None
            counts[run_pk] = counts.get(run_pk, 0) + count
    return counts


async def shared_runs(session: AsyncSession, run_pks: Sequence[int]) -> set[int]:
    """Return the runs that must stay, because an event that they took still waits for other partition keys of the DAG.

    A scheduler may divide the event among the keys again. The share that the run took (a row of `dag_partition_event`)
    then prevents a second share for the run's key. Deleting the run would delete this share, and another run of the key
    could take the event.
    """
    rows = await perform(session, single_step(SHARED(run_pks=list(run_pks))))
    return {run_pk for (run_pk,) in rows}


async def delete_runs(session: AsyncSession, run_pks: Collection[int]) -> None:
    """Delete these runs, which the caller has locked, with their tasks, attempts and queue entries."""
    for table in (TaskRun, RunLaunch, RunAttempt, QueuedAssetEvent, DagPartitionEvent):
        await session.execute(delete(table).where(table.run_pk.in_(run_pks)))
    await session.execute(delete(DagRun).where(DagRun.id.in_(run_pks)))


def _is_old(before: datetime) -> tuple[ColumnElement[bool], ...]:
    return (*_is_over(before), DagRun.run_after < before)


def _is_over(before: datetime) -> tuple[ColumnElement[bool], ...]:
    return (
        _ENDED,  # type: ignore[return-value]
        func.coalesce(DagRun.ended_at, DagRun.queued_at) < before,
        DagRun.callback.is_(None),
    )
