"""DAGs for the scheduler's tests, and what becomes of their runs and events."""

from datetime import datetime
from typing import Any

from sqlalchemy import update

from tests.store.seeding import add_asset, add_dag, asset_json, queue_of, runs_of
from triggerer.domain.runs import RunState
from triggerer.domain.schedules import Schedule, schedule_to_json
from triggerer.errors import OutcomeUnknown
from triggerer.store.dags.due_moments import renew_due_moments
from triggerer.store.database.script import Row, Step
from triggerer.store.database.transactions import Database, database_now
from triggerer.store.database.wakeups.signals import Signal, announce
from triggerer.store.schema.models import Dag, DagRun


async def end(database: Database, *runs: DagRun) -> None:
    """End runs, as an executor would."""
    async with database.transaction() as session:
        for run in runs:
            await session.execute(
                update(DagRun).where(DagRun.id == run.id).values(state=RunState.SUCCESS)
            )
            announce(session, Signal.RUNS_ENDED, run.dag_id)


async def set_columns(database: Database, dag_id: str, **columns: Any) -> None:
    async with database.transaction() as session:
        await session.execute(update(Dag).where(Dag.dag_id == dag_id).values(**columns))
        announce(session, Signal.DAGS_CHANGED, dag_id)


async def two_assets(database: Database, **columns: Any) -> None:
    await add_asset(database, 1, "flights")
    await add_asset(database, 2, "weather")
    both = {"all": [asset_json("flights"), asset_json("weather")]}
    await add_dag(database, "join", both, assets=[1, 2], **columns)


async def one_asset(database: Database, **columns: Any) -> None:
    await add_asset(database, 1, "flights")
    await add_dag(database, "report", asset_json("flights"), assets=[1], **columns)


async def check_conservation(database: Database, dag_id: str, events: int) -> None:
    """Every event is queued or in exactly one run, and no run is empty."""
    queue = await queue_of(database, dag_id)
    assert len(queue) == events
    assert {pk for _, pk in queue if pk is not None} == {
        r.id for r in await runs_of(database, dag_id)
    }


def lose_answers(database: Database, kind: type[Step]) -> None:
    """From now on, raise `OutcomeUnknown` after each step of this kind, although the step is committed."""
    perform_step = database.perform_step

    async def lose(step: Step) -> list[Row]:
        rows = await perform_step(step)
        if isinstance(step, kind):
            raise OutcomeUnknown("the connection broke")
        return rows

    database.perform_step = lose  # type: ignore[method-assign]


async def now_of(database: Database) -> datetime:
    async with database.reading() as session:
        return await database_now(session)


async def timed(
    database: Database,
    dag_id: str,
    schedule: Schedule,
    *,
    assets: tuple[int, ...] = (),
    **columns: Any,
) -> None:
    """Add a DAG with this schedule and its due times, as the DAG processor does."""
    await add_dag(database, dag_id, schedule_to_json(schedule), assets=assets, **columns)
    await renewed(database, dag_id)


async def renewed(database: Database, dag_id: str) -> Dag:
    async with database.transaction() as session:
        dag = await session.get(Dag, dag_id)
        assert dag is not None
        await renew_due_moments(session, [dag])
        return dag
