"""Runs are claimed by priority, and by the free slots of their pools."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import anyio
import pytest

from tests.store.scheduling import end
from tests.store.seeding import add_dag, runs_of
from triggerer.domain.runs import RunState
from triggerer.scheduler.explaining import why_not
from triggerer.store.database.opening import open_database
from triggerer.store.database.transactions import Database
from triggerer.store.runs.attempts.claims import claim_runs, claimed_runs
from triggerer.store.runs.creation.create_run import create_manual_run
from triggerer.store.runs.pooled_claims import any_run_may_use_pools, claim_with_pools


async def queue(database: Database, *dag_ids: str) -> None:
    async with database.transaction() as session:
        for dag_id in dag_ids:
            await create_manual_run(session, dag_id)


async def claim(database: Database, limit: int = 9, **slots: int) -> list[str]:
    rows = await database.perform(
        claim_with_pools(executor="me", limit=limit, log_home="/home", slots=slots)
    )
    return [order.dag_id for order in claimed_runs(rows, executor="me", log_home="/home")]


async def test_runs_with_the_highest_priority_are_executed_first(database: Database) -> None:
    for name, priority in (("low", -1), ("plain", 0), ("high", 5)):
        await add_dag(database, name, None, priority=priority)
    await queue(database, "low", "plain", "high", "plain", "high")
    claimed: list[str] = []
    for limit in (2, 1, 9):
        (rows,) = await database.perform_steps(
            [claim_runs(executor="me", limit=limit, log_home="/home")]
        )
        claimed += [order.dag_id for order in claimed_runs(rows, executor="me", log_home="/home")]
    assert claimed == ["high", "high", "plain", "plain", "low"]


async def test_a_pool_bounds_the_runs_of_all_dags_that_name_it(database: Database) -> None:
    await add_dag(database, "one", None, pools="db")
    await add_dag(database, "two", None, pools="db,lake")
    await add_dag(database, "free", None)
    await queue(database, "one", "two", "one", "free")
    # An executor without pools claims no run that needs a pool.
    (rows,) = await database.perform_steps([claim_runs(executor="me", limit=1, log_home="/home")])
    assert [order.dag_id for order in claimed_runs(rows, executor="me", log_home="/home")] == [
        "free"
    ]
    assert await claim(database, db=1, lake=1) == ["one"]
    assert await claim(database, db=1, lake=1) == []
    async with database.reading() as session:
        found = await why_not(session, "two", pools={"db": 1, "lake": 1})
    assert "waits for a slot of db, lake" in found.holds[-1].reason
    await end(database, *[run for run in await runs_of(database, "one") if run.state == "running"])
    assert await claim(database, db=1, lake=1) == ["two"]
    assert await claim(database, db=2, lake=1) == ["one"]


async def test_runs_with_pools_and_without_are_claimed_in_one_order(database: Database) -> None:
    await add_dag(database, "pooled", None, pools="db", priority=1)
    await add_dag(database, "urgent", None, priority=2)
    await add_dag(database, "free", None)
    await queue(database, "free", "pooled", "urgent", "free")
    assert await claim(database, 3, db=1) == ["urgent", "pooled", "free"]


async def test_whoever_claims_at_the_same_time_no_slot_is_given_twice(
    postgres_url: str, postgres: Database
) -> None:
    await add_dag(postgres, "pooled", None, pools="db")
    await queue(postgres, *["pooled"] * 12)
    claimed: list[Sequence[str]] = []

    async def one(database: Database) -> None:
        claimed.append(await claim(database, 2, db=3))

    async with open_database(postgres_url) as second, anyio.create_task_group() as tasks:
        for number in range(8):
            tasks.start_soon(partial(one, second if number % 2 else postgres))
    assert sum(map(len, claimed)) == 3
    running = [run for run in await runs_of(postgres, "pooled") if run.state == RunState.RUNNING]
    assert len(running) == 3


@pytest.mark.parametrize("is_queued", [False, True])
async def test_pools_are_looked_for_as_long_as_a_run_may_wait_for_one(
    database: Database, is_queued: bool
) -> None:
    await add_dag(database, "plain", None)
    async with database.reading() as session:
        assert not await any_run_may_use_pools(session)
    await add_dag(database, "pooled", None, pools="db")
    if is_queued:
        await queue(database, "pooled")
    async with database.transaction() as session:
        from sqlalchemy import text

        await session.execute(text("UPDATE dag SET pools = NULL"))
    async with database.reading() as session:
        assert await any_run_may_use_pools(session) is is_queued
