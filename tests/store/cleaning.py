"""Makes rows old, and runs `triggerer db clean` as a function."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sqlalchemy import func, select, update

from tests.actors import TESTER
from tests.store.scheduling import now_of
from tests.store.seeding import NOW, events_in
from triggerer.domain.runs import RunState, RunType
from triggerer.operations.cleaning import Cleaned, Limits, clean
from triggerer.scheduler import Scheduler
from triggerer.store.database.transactions import Database
from triggerer.store.schema.models import AssetEvent, DagRun
from triggerer.store.schema.models.base import Base

DAY = timedelta(days=1)
AGES = 100 * DAY
"""The age that `age` gives to all events and runs."""


async def age(database: Database) -> None:
    """Make all events and runs 100 days old, and end all runs with success."""
    then = await now_of(database) - AGES
    async with database.transaction() as session:
        await session.execute(update(AssetEvent).values(timestamp=then))
        ended = {"ended_at": then, "queued_at": then, "run_after": then, "state": RunState.SUCCESS}
        await session.execute(update(DagRun).values(**ended))


async def cleaned(database: Database, *, days: int = 30, **options: Any) -> Cleaned:
    """Delete data older than this number of days."""
    before = await now_of(database) - days * DAY
    limits = Limits().with_events_and_runs(before)
    return await clean(database, TESTER, limits, ack_timeout=timedelta(seconds=300), **options)


async def count(database: Database, table: type[Base]) -> int:
    async with database.reading() as session:
        return await session.scalar(select(func.count()).select_from(table)) or 0


async def events(database: Database) -> list[int]:
    return [event.id for event in await events_in(database)]


async def run_once(database: Database) -> None:
    await Scheduler(database).run_once()


async def by_hand(database: Database) -> None:
    """Give the DAG `d` a manual run that is newer than its other runs."""
    async with database.transaction() as session:
        session.add(
            DagRun(
                dag_id="d", run_id="by-hand", run_type=RunType.MANUAL, state="success",
                run_after=NOW, queued_at=NOW, ended_at=NOW,
            )
        )  # fmt: skip
