"""Finds ended runs by DAG, state and time, in the order of their creation."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Select, distinct, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.runs import RunState
from triggerer.store.runs.state_conditions import UNSUCCESSFUL
from triggerer.store.schema.models import DagRun

_UNSUCCESSFUL = frozenset({RunState.FAILED, RunState.CANCELLED})


@dataclass(frozen=True, slots=True)
class EndedRuns:
    """Conditions for ended runs. A run is chosen if it meets all of them."""

    states: Collection[RunState]
    """The final states to choose."""
    dag: str | None = None
    start: datetime | None = None
    """The earliest `run_after` (the time in a run's id). None: any."""
    end: datetime | None = None
    """The latest `run_after`, inclusive. None: any."""


@dataclass(frozen=True, slots=True)
class EndedRun:
    """One of the chosen runs."""

    pk: int
    dag_id: str
    run_id: str
    state: str
    run_after: datetime


async def count_ended(session: AsyncSession, choice: EndedRuns) -> tuple[int, int, int]:
    """Return the number of chosen runs, the number of their DAGs, and the highest primary key (0 if there is none)."""
    query = _chosen(choice, func.count(), func.count(distinct(DagRun.dag_id)), func.max(DagRun.id))
    runs, dags, highest = (await session.execute(query)).one()
    return runs, dags, highest or 0


async def next_ended(
    session: AsyncSession, choice: EndedRuns, *, after: int, up_to: int, limit: int, lock: bool
) -> Sequence[EndedRun]:
    """Return the first `limit` chosen runs with primary keys above `after` and up to `up_to`. Empty: no run is left.

    Args:
        lock: True to lock these runs, so that no other transaction changes them until the commit.
    """
    columns = (DagRun.id, DagRun.dag_id, DagRun.run_id, DagRun.state, DagRun.run_after)
    query = _chosen(choice, *columns).where(DagRun.id > after, DagRun.id <= up_to)
    query = query.order_by(DagRun.id).limit(limit)
    rows = await session.execute(query.with_for_update() if lock else query)
    return [EndedRun(*row) for row in rows]


def _chosen(choice: EndedRuns, *columns: Any) -> Select[Any]:
    query = select(*columns).where(DagRun.state.in_([state.value for state in choice.states]))
    if _UNSUCCESSFUL.issuperset(choice.states):
        # The planners use the partial index of unsuccessful runs only if the query contains the index's condition.
        query = query.where(UNSUCCESSFUL)
    if choice.dag is not None:
        query = query.where(DagRun.dag_id == choice.dag)
    if choice.start is not None:
        query = query.where(DagRun.run_after >= choice.start)
    if choice.end is not None:
        query = query.where(DagRun.run_after <= choice.end)
    return query
