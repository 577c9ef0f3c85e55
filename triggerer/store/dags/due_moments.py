"""Stores when a DAG is due next, according to its timetable."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import inspect, select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.schedules import OnPartitions, next_info, schedule_from_json, timetable_in
from triggerer.observability.logging_setup import LazyLogger
from triggerer.store.dags.snapshots import CLOCK_STEP
from triggerer.store.database.clock import Now
from triggerer.store.database.script import Row
from triggerer.store.database.statement import Statement
from triggerer.store.database.transactions import database_now
from triggerer.store.schema.models import Dag, DagRun
from triggerer.store.schema.models.dags import NEVER

if TYPE_CHECKING:
    from triggerer.domain.timetables import DataInterval, TimeRestriction

_log = LazyLogger(__name__)

_STORE: Final = Statement(
    """
UPDATE dag SET next_run_after = {run_after}, next_interval_start = {start}, next_interval_end = {end},
       last_run_at = CASE WHEN {has_run} THEN {NOW} ELSE last_run_at END
WHERE dag_id = {dag_id}
""",
    NOW=(":now", "clock_timestamp()"),
)


@dataclass(frozen=True, slots=True)
class StoreNextRun:
    """A step without result rows: store when the next run of a DAG's timetable is due."""

    dag_id: str
    run_after: datetime | None
    """None: the timetable has no next run."""
    interval: tuple[datetime, datetime] | None
    """The data interval of the next run, or None if the timetable gave no interval or has no next run."""
    has_run: bool
    """True if this transaction creates runs of the DAG. The step then stores the present time as `last_run_at`."""

    def on_sqlite(self, connection: sqlite3.Connection, now: Now) -> list[Row]:
        return _STORE(**self._values(), now=now()).on_sqlite(connection, now)

    def on_postgres(self) -> tuple[str, Sequence[Any]]:
        return _STORE(**self._values()).on_postgres()

    def _values(self) -> dict[str, Any]:
        start, end = self.interval or (None, None)
        return {
            "dag_id": self.dag_id,
            "run_after": self.run_after or NEVER,
            "start": start,
            "end": end,
            "has_run": self.has_run,
        }


async def renew_due_moments(session: AsyncSession, dags: Sequence[Dag]) -> None:
    """Recompute when each of these DAGs is due next, after their schedules have changed.

    If a timetable cannot be loaded, or raises, its DAG becomes due at once. The scheduler then reports the error.
    """
    now = None
    for dag in dags:
        try:
            schedule = schedule_from_json(dag.schedule)
            if isinstance(schedule, OnPartitions):
                # Make the DAG due at once. The scheduler then finds out and stores when its next partition key is due.
                now = now or await database_now(session)
                dag.next_run_after, dag.next_interval_start, dag.next_interval_end = now, None, None
                continue
            # A DAG whose row is not inserted yet has no runs.
            is_new = timetable_in(schedule) is None or inspect(dag).pending
            last = None if is_new else await _last_interval(session, dag.dag_id)
            info = next_info(schedule, last, _restriction(dag))
        except Exception as error:  # noqa: BLE001  (the boundary to users' timetables)
            _log.warning("a DAG's next run cannot be computed", dag_id=dag.dag_id, error=str(error))
            now = now or await database_now(session)
            dag.next_run_after, dag.next_interval_start, dag.next_interval_end = now, None, None
            continue
        start, end = (None, None) if info is None else info.data_interval
        values = {
            "next_run_after": NEVER if info is None else info.run_after,
            "next_interval_start": start,
            "next_interval_end": end,
        }
        for name, value in values.items():
            if getattr(dag, name) != value:
                setattr(dag, name, value)


def _restriction(dag: Dag) -> TimeRestriction:
    from triggerer.domain.timetables import TimeRestriction

    return TimeRestriction(dag.start_date, dag.end_date, dag.catchup)


async def _last_interval(session: AsyncSession, dag_id: str) -> DataInterval | None:
    from triggerer.domain.timetables import DataInterval

    now = await database_now(session)
    row = (
        await session.execute(
            select(DagRun.data_interval_start, DagRun.data_interval_end)
            .where(
                DagRun.dag_id == dag_id,
                DagRun.logical_date.is_not(None),
                DagRun.run_type.in_(("scheduled", "asset_triggered")),
                DagRun.run_after <= now + CLOCK_STEP,
            )
            .order_by(DagRun.run_after.desc())
            .limit(1)
        )
    ).one_or_none()
    if row is None or row[0] is None or row[1] is None:
        return None
    return DataInterval(row[0], row[1])
