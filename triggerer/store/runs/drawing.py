"""Reads a DAG's runs for two drawings of the web page: the states of tasks by run, and the number of runs by day."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.errors import UnknownDag
from triggerer.store.schema.models import Dag, DagRun, TaskRun

_MOST_CELLS: Final = 100_000
_MOST_COUNTED: Final = 50_000
STATES: Final = (
    None,
    "running",
    "success",
    "failed",
    "cancelled",
    "skipped",
    "upstream_failed",
)
"""The states of a cell. None: the task has not begun."""
_NUMBERS: Final = {state: number for number, state in enumerate(STATES)}


@dataclass(frozen=True, slots=True)
class GridRun:
    """A run, drawn as a column of a grid."""

    run_id: str
    state: str
    run_after: datetime
    started_at: datetime | None
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class Grid:
    """The states of a DAG's tasks in its newest runs."""

    tasks: list[str]
    """The ids of the DAG's current tasks, in order."""
    runs: list[GridRun]
    """Newest first."""
    states: list[str | None]
    cells: list[int]
    """For each run, and within it for each of `tasks`: the state of the task's last try, as an index into `states`."""
    next_before: str | None
    """The argument `before` for older runs. None: there are no older runs."""


@dataclass(frozen=True, slots=True)
class Day:
    """The runs that were queued on one day, by state."""

    day: str
    states: dict[str, int]


@dataclass(frozen=True, slots=True)
class Calendar:
    """The runs of a DAG in one year, by day in UTC. Days without a run are left out."""

    year: int
    days: list[Day]
    is_counted_short: bool
    """True: only the newest 50,000 runs of the year are counted. The year may have older runs."""


async def read_grid(
    session: AsyncSession, dag_id: str, *, limit: int, before: int | None = None
) -> Grid:
    """Return the newest runs of a DAG with the states of its tasks.

    Args:
        limit: The most runs. Fewer are returned if the grid would have more than 100,000 cells.
        before: `next_before` of the previous grid, for older runs.
    Raises:
        UnknownDag: There is no such DAG.
    """
    tasks = await session.scalar(select(Dag.tasks).where(Dag.dag_id == dag_id))
    if tasks is None:
        raise UnknownDag(dag_id)
    names = [str(task["task_id"]) for task in tasks]
    limit = max(1, min(limit, _MOST_CELLS // max(1, len(names))))
    query = (
        select(
            DagRun.id,
            DagRun.run_id,
            DagRun.state,
            DagRun.run_after,
            DagRun.started_at,
            DagRun.ended_at,
        )
        .where(DagRun.dag_id == dag_id)
        .order_by(DagRun.id.desc())
        .limit(limit + 1)
    )
    if before is not None:
        query = query.where(DagRun.id < before)
    rows = (await session.execute(query)).all()
    shown = rows[:limit]
    places = {name: index for index, name in enumerate(names)}
    columns = {row.id: index * len(names) for index, row in enumerate(shown)}
    cells = [0] * (len(names) * len(shown))
    found = select(TaskRun.run_pk, TaskRun.task_id, TaskRun.state).where(
        TaskRun.run_pk.in_(list(columns))
    )
    for run_pk, task_id, state in await session.execute(found):
        if task_id in places:
            cells[columns[run_pk] + places[task_id]] = _NUMBERS.get(state, 0)
    return Grid(
        tasks=names,
        runs=[GridRun(*row[1:]) for row in shown],
        states=list(STATES),
        cells=cells,
        next_before=str(shown[-1].id) if len(rows) > limit else None,
    )


async def read_calendar(session: AsyncSession, dag_id: str, year: int) -> Calendar:
    """Return how many runs were queued on each day of a year, by state. At most 50,000 runs of the year are counted.

    An earlier year takes longer, because the query reads the DAG's runs from the newest back to the beginning of the
    year.

    Raises:
        UnknownDag: There is no such DAG.
    """
    if await session.scalar(select(Dag.dag_id).where(Dag.dag_id == dag_id)) is None:
        raise UnknownDag(dag_id)
    runs = (
        select(_day(session, DagRun.queued_at).label("day"), DagRun.state)
        .where(
            DagRun.dag_id == dag_id,
            DagRun.queued_at >= datetime(year, 1, 1, tzinfo=UTC),
            DagRun.queued_at < datetime(year + 1, 1, 1, tzinfo=UTC),
        )
        .order_by(DagRun.id.desc())
        .limit(_MOST_COUNTED)
        .subquery()
    )
    query = select(runs.c.day, runs.c.state, func.count()).group_by(runs.c.day, runs.c.state)
    days: dict[str, dict[str, int]] = {}
    total = 0
    for day, state, count in await session.execute(query):
        days.setdefault(day, {})[state] = count
        total += count
    return Calendar(
        year, [Day(day, states) for day, states in sorted(days.items())], total >= _MOST_COUNTED
    )


def _day(session: AsyncSession, instant: Any) -> ColumnElement[str]:
    if session.get_bind().dialect.name == "sqlite":
        return func.substr(instant, 1, 10)
    return func.to_char(func.timezone("UTC", instant), "YYYY-MM-DD")
