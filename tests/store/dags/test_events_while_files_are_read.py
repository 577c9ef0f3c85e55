"""Events that come while a DAG's file is read, is broken, or has changed still start its run."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from tests.store.dags.test_dag_sync import asset, broken, dag, file, sync
from tests.store.seeding import emit, queue_of, runs_of
from triggerer.scheduler import Scheduler
from triggerer.store.database.transactions import Database
from triggerer.store.schema.models import Asset

FLIGHTS = file(assets=(asset("flights"),), dags=(dag("report", "flights"),))
CHANGED = file(assets=(asset("flights"),), dags=(dag("report", "flights", max_active_runs=3),))


async def emit_flight(database: Database) -> int:
    async with database.reading() as session:
        asset_id = (await session.scalars(select(Asset.id).where(Asset.name == "flights"))).one()
    (event,) = await emit(database, asset_id)
    return event


@pytest.mark.rule("an event while a file is being parsed never starts a run")
@pytest.mark.parametrize("meanwhile", ["changed", "broken", "not read in time"])
async def test_an_event_while_a_file_is_being_parsed_starts_a_run(
    database: Database, meanwhile: str
) -> None:
    await sync(database, FLIGHTS)
    before = await emit_flight(database)
    if meanwhile == "changed":
        await sync(database, CHANGED)
    elif meanwhile == "broken":
        await sync(database, broken())
    else:
        await sync(database, unparsed=("a.py",))
    after = await emit_flight(database)
    assert await Scheduler(database).run_once() == 1
    (run,) = await runs_of(database, "report")
    assert await queue_of(database, "report") == [(before, run.id), (after, run.id)]
