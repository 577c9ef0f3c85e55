"""Executors skip the runs of a broken DAG file, at no cost. When the file loads, its runs are released."""

from datetime import UTC, datetime

import anyio
from sqlalchemy import select, text, update

from tests.run_orders import order
from tests.store.dags.test_dag_sync import broken, dag, file, sync
from tests.store.explaining import working
from triggerer.store.database.script import Script, perform, single_step
from triggerer.store.database.transactions import Database
from triggerer.store.database.wakeups.signals import Signal
from triggerer.store.runs.attempts.claims import claim_runs
from triggerer.store.runs.creation.create_run import create_manual_run
from triggerer.store.runs.held import (
    any_file_is_broken,
    hold_attempt,
    hold_broken,
    release_due,
)
from triggerer.store.runs.listing import list_runs
from triggerer.store.schema.models import DagRun
from triggerer.store.schema.models.dags import NEVER

ILL = file("a.py", dags=(dag("ill"),))
WELL = file("b.py", dags=(dag("well", location="b.py:1"),))


async def queue(database: Database, dag_id: str, count: int = 1) -> None:
    async with database.transaction() as session:
        for _ in range(count):
            await create_manual_run(session, dag_id)


def _claim(limit: int) -> Script[list[str]]:
    yield from hold_broken(limit=limit)
    rows = yield claim_runs(executor="me", limit=limit, log_home="home")
    return [row[1] for row in rows]


async def claim(database: Database, limit: int = 10) -> list[str]:
    return await database.perform(_claim(limit))


async def held(database: Database) -> list[datetime | None]:
    async with database.reading() as session:
        query = select(DagRun.held_until).where(DagRun.state == "queued").order_by(DagRun.id)
        return list(await session.scalars(query))


async def test_runs_of_a_broken_file_are_passed_over_until_it_loads(database: Database) -> None:
    await sync(database, ILL, WELL)
    await sync(database, broken("a.py"), WELL)
    async with database.reading() as session:
        assert await any_file_is_broken(session)
    await queue(database, "ill", 5)
    await queue(database, "well")
    assert await claim(database, limit=2) == ["well"]
    assert await held(database) == [NEVER] * 5
    with database.wakeups.subscribe(Signal.RUNS_QUEUED) as queued:
        await sync(database, ILL, WELL)
        with anyio.fail_after(5):
            assert await queued.wait() == {Signal.RUNS_QUEUED: {"ill"}}
    async with database.reading() as session:
        assert not await any_file_is_broken(session)
    assert await claim(database) == ["ill"] * 5


async def test_another_file_that_is_parsed_releases_nothing(database: Database) -> None:
    await sync(database, ILL, WELL)
    await sync(database, broken("a.py"), WELL)
    await queue(database, "ill")
    assert await claim(database) == []
    await sync(database, broken("a.py"), file("b.py"))
    assert await held(database) == [NEVER]


async def test_a_deleted_file_releases_its_runs_so_that_they_can_fail(database: Database) -> None:
    await sync(database, ILL)
    await sync(database, broken("a.py"))
    await queue(database, "ill")
    assert await claim(database) == []
    await sync(database)
    assert await claim(database) == ["ill"]


async def test_an_attempt_that_cannot_load_its_file_is_held_and_does_not_count(
    database: Database,
) -> None:
    await sync(database, ILL)
    await queue(database, "ill")
    delays = []
    for attempt in (1, 2, 3):
        assert await claim(database) == ["ill"]
        async with database.reading() as session:
            (run,) = await session.scalars(select(DagRun))
        mine = order(run.id, attempt, dag_id="ill")
        hold = hold_attempt(executor="me", order=mine, reason="no such package")
        async with database.transaction() as session:
            assert len(await perform(session, single_step(hold))) == 1
            # A repeat, after an outcome that was unknown, finds nothing to do.
            assert await perform(session, single_step(hold)) == []
        async with database.reading() as session:
            (run,) = await session.scalars(select(DagRun))
        assert (run.state, run.waiting_for, run.again) == (
            "queued",
            "no such package",
            {"kept": {}, "cleared": {}, "after_attempt": attempt, "after_epoch": 0},
        )
        assert run.held_until is not None
        delays.append(round((run.held_until - datetime.now(UTC)).total_seconds() / 5))
        assert await claim(database) == []
        async with database.transaction() as session:
            assert (
                await release_due(session, holds_broken=True, executor="you", is_alone=False) == []
            )
            await session.execute(update(DagRun).values(held_until=datetime.now(UTC)))
            # The executor "me" could not load the file. Another executor may have the missing package, so "me" waits.
            assert (
                await release_due(session, holds_broken=True, executor="me", is_alone=False) == []
            )
            assert await release_due(
                session, holds_broken=True, executor="you", is_alone=False
            ) == ["ill"]
    assert delays == [1, 2, 4]


async def test_a_held_run_shows_the_reason(database: Database) -> None:
    await sync(database, ILL)
    await sync(database, broken("a.py"))
    await queue(database, "ill")
    async with database.reading() as session:
        (run,) = await list_runs(session)
    # The reason is shown at once, even before an executor tries the run.
    assert run.waiting_for == "its file, which does not load: a.py:3: syntax error"
    assert run.waiting_since == run.queued_at


async def test_the_cost_of_a_claim_does_not_grow_with_held_runs(
    sqlite: Database,
) -> None:
    await sync(sqlite, ILL, WELL)
    await sync(sqlite, broken("a.py"), WELL)
    costs = []
    for count in (10, 3_000):
        await queue(sqlite, "ill")
        async with sqlite.transaction() as session:
            await session.execute(
                text(
                    "WITH RECURSIVE n(value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM n"
                    " WHERE value < :count) INSERT INTO dag_run (dag_id, run_id, run_type, state,"
                    " run_after, params, queued_at, attempt, cancel_requested)"
                    " SELECT 'ill', :count || ' ' || value, 'manual', 'queued', '2026-01-01', '{}',"
                    " '2026-01-01', 0, false FROM n"
                ),
                {"count": count},
            )
        await claim(sqlite, limit=100)
        await queue(sqlite, "well")
        async with sqlite.transaction() as session, working(await session.connection()) as work:
            assert await perform(session, _claim(1)) == ["well"]
        costs.append(work.done)
    few, many = costs
    assert many <= few + 3


async def test_a_run_that_is_claimed_meanwhile_is_not_held(database: Database) -> None:
    await sync(database, ILL)
    await queue(database, "ill")
    assert await claim(database) == ["ill"]
    await sync(database, broken("a.py"))
    assert await claim(database) == []
    async with database.reading() as session:
        (run,) = await session.scalars(select(DagRun))
    assert (run.state, run.held_until) == ("running", None)
