import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from sqlalchemy import select, text, update

from tests.store.seeding import NOW, add_asset, add_dag, asset_json
from triggerer.store.database.clock import Now
from triggerer.store.database.script import Row, Script, perform, single_step
from triggerer.store.database.transactions import Database
from triggerer.store.runs.attempts.claims import claim_runs
from triggerer.store.runs.attempts.steps import begin_run
from triggerer.store.runs.creation.create_run import create_manual_run
from triggerer.store.runs.listing import list_runs
from triggerer.store.runs.orphans import MAX_ATTEMPTS, recover_orphans
from triggerer.store.runs.transitions import (
    cancel_queued,
    record_wait,
    request_cancel,
    running_of,
)
from triggerer.store.schema.models import DagRun, Instance, TaskRun
from triggerer.store.streams.leases import register_instance

_ENDED = text(
    "INSERT INTO dag_run (dag_id, run_id, run_type, state, run_after, params, queued_at, attempt,"
    " cancel_requested, executor)"
    " SELECT 'report', 'old ' || value, 'manual', 'success', '2026-01-01', '{}', '2026-01-01', 1,"
    " false, 'me' FROM json_each(:numbers)"
)


class _Count:
    """A step after which SQLite calls `back` at every tenth instruction of the connection."""

    def __init__(self, back: Callable[[], None]) -> None:
        self.back = back

    def on_sqlite(self, connection: sqlite3.Connection, now: Now) -> list[Row]:
        connection.set_progress_handler(self.back, 10)
        return []

    def on_postgres(self) -> tuple[str, Sequence[Any]]:
        raise NotImplementedError


def _counting(back: Callable[[], None]) -> Script[None]:
    yield _Count(back)


async def test_runs_that_have_ended_slow_down_nothing_that_an_executor_asks(
    sqlite: Database,
) -> None:
    await add_asset(sqlite, 1, "flights")
    await add_dag(sqlite, "report", asset_json("flights"), assets=[1])
    # Count instructions, because EXPLAIN shows another plan for a value than SQLite makes for a parameter.
    count = 0

    def tick() -> None:
        nonlocal count
        count += 1

    counts = []
    for ended in (0, 2_000):
        async with sqlite.transaction() as session:
            await session.execute(text("UPDATE dag_run SET state = 'success'"))
            await session.execute(_ENDED, {"numbers": str(list(range(ended)))})
            await create_manual_run(session, "report")
            await perform(session, _counting(tick))
            count = 0
            claim = claim_runs(executor="me", limit=2, log_home="home")
            assert len(await perform(session, single_step(claim))) == 1
            assert len(await running_of(session, executor="me")) == 1
            await cancel_queued(session)
            await recover_orphans(session, executor="me", is_alone=True)
            counts.append(count)
    without, with_history = counts
    assert with_history < without * 1.5


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_run_that_is_cancelled_after_its_executor_died_has_no_running_tasks(
    database: Database, at_once: bool
) -> None:
    await add_dag(database, "report", None)
    async with database.transaction() as session:
        run = await create_manual_run(session, "report")
        lost = {"state": "running", "executor": "dead", "attempt": 1}
        await session.execute(update(DagRun).values(**lost, cancel_requested=not at_once))
        session.add(TaskRun(run_pk=run.pk, task_id="t", state="running"))
        session.add(TaskRun(run_pk=run.pk, task_id="before", state="success"))
        await session.flush()
        await recover_orphans(session, executor="me", is_alone=True)
        if at_once:
            await request_cancel(session, run.pk)
        else:
            assert await cancel_queued(session) == ["report"]
    async with database.reading() as session:
        tasks = {row.task_id: row for row in await session.scalars(select(TaskRun))}
        assert await session.scalar(select(DagRun.state)) == "cancelled"
    assert (tasks["t"].state, tasks["before"].state) == ("cancelled", "success")
    assert tasks["t"].ended_at is not None


async def _claimed(database: Database, executor: str) -> DagRun:
    """Claim the only run for this executor, and return the run."""
    (rows,) = await database.perform_steps(
        [claim_runs(executor=executor, limit=2, log_home="home")]
    )
    assert len(rows) == 1
    return await _only_run(database)


async def _begun(database: Database, executor: str, pk: int, epoch: int) -> bool:
    (rows,) = await database.perform_steps([begin_run(executor=executor, run_pk=pk, epoch=epoch)])
    return bool(rows)


async def _waits(database: Database, pk: int, epoch: int, reason: str | None) -> DagRun:
    """Store why the only run waits, as its executor `me` does, and return the run."""
    since = None if reason is None else NOW
    note = record_wait(
        executor="me", run_pk=pk, epoch=epoch, waiting_for=reason, waiting_since=since
    )
    await database.perform_steps([note])
    return await _only_run(database)


async def _only_run(database: Database) -> DagRun:
    async with database.reading() as session:
        return (await session.scalars(select(DagRun))).one()


async def _recovered(database: Database, executor: str = "me") -> DagRun:
    """Let `executor` recover the only run from an executor that is dead, and return the run."""
    async with database.transaction() as session:
        await recover_orphans(session, executor=executor, is_alone=True)
    return await _only_run(database)


async def test_only_attempts_that_were_begun_count_towards_giving_up(database: Database) -> None:
    await add_dag(database, "report", None)
    async with database.transaction() as session:
        await create_manual_run(session, "report")
    # The first attempt counts as begun when it is claimed.
    assert (await _claimed(database, "first")).started_at is not None
    assert (await _recovered(database)).attempt == 1
    for attempt in range(2, MAX_ATTEMPTS + 1):
        for number in range(MAX_ATTEMPTS):
            run = await _claimed(database, f"never {number}")
            assert (run.attempt, run.started_at) == (attempt, None)
            run = await _recovered(database)
            assert (run.state, run.attempt) == ("queued", attempt - 1)
        run = await _claimed(database, "begins")
        assert await _begun(database, "begins", run.id, run.epoch)
        assert (await _only_run(database)).started_at is not None
        run = await _recovered(database)
        assert run.attempt == attempt
    assert run.state == "failed"
    assert "given up after 3 attempts" in (run.error or "")


async def test_an_attempt_that_another_executor_has_does_not_begin(database: Database) -> None:
    await add_dag(database, "report", None)
    async with database.transaction() as session:
        await create_manual_run(session, "report")
    await _claimed(database, "first")
    await _recovered(database)
    run = await _claimed(database, "second")
    assert not await _begun(database, "first", run.id, run.epoch)
    assert not await _begun(database, "second", run.id, run.epoch - 1)
    await _recovered(database)
    assert not await _begun(database, "second", run.id, run.epoch)
    assert (await _only_run(database)).started_at is None


async def test_a_run_shows_its_attempts_wait_while_that_attempt_is_running(
    database: Database,
) -> None:
    async def shown() -> tuple[str | None, Any]:
        async with database.reading() as session:
            (view,) = await list_runs(session)
        return view.waiting_for, view.waiting_since

    await add_dag(database, "report", None)
    async with database.transaction() as session:
        await create_manual_run(session, "report")
        await register_instance(session, "me", kind="executor")
    run = await _claimed(database, "me")
    assert await shown() == (None, None)
    await _waits(database, run.id, run.epoch, "cores")
    assert await shown() == ("cores", NOW)
    # A report with the epoch of another attempt changes nothing.
    await _waits(database, run.id, run.epoch + 1, "nothing of ours")
    assert await shown() == ("cores", NOW)
    await _waits(database, run.id, run.epoch, None)
    assert await shown() == (None, None)

    await _waits(database, run.id, run.epoch, "cores")
    queued = await _recovered(database, "other")
    assert queued.state == "queued"
    assert await shown() == ("a worker that is free", queued.queued_at)
    run = await _claimed(database, "me")
    # The run is claimed again, and no worker has begun it.
    assert await shown() == ("a worker that is free", run.queued_at)
    async with database.transaction() as session:
        begin = begin_run(executor="me", run_pk=run.id, epoch=run.epoch)
        assert await perform(session, single_step(begin))
    assert await shown() == (None, None)
    await _waits(database, run.id, run.epoch, "cores")
    async with database.transaction() as session:
        await session.execute(update(DagRun).values(state="failed"))
    assert await shown() == (None, None)
    await _waits(database, run.id, run.epoch, None)
    assert (await _only_run(database)).waiting_for == "cores"


async def test_a_run_whose_executor_has_ended_waits_for_another_one(database: Database) -> None:
    await add_dag(database, "report", None)
    async with database.transaction() as session:
        await create_manual_run(session, "report")
    async with database.reading() as session:
        (view,) = await list_runs(session)
    assert view.waiting_for == "an executor: none is running"
    async with database.transaction() as session:
        await register_instance(session, "me", kind="executor")
    await _claimed(database, "me")
    async with database.transaction() as session:
        await session.execute(update(Instance).values(heartbeat_at=NOW, expires_at=NOW))
    async with database.reading() as session:
        (view,) = await list_runs(session)
    assert (view.waiting_for, view.waiting_since) == ("another executor: its own is gone", NOW)


async def test_the_duration_of_a_run_goes_on_when_another_executor_takes_it_over(
    database: Database,
) -> None:
    await add_dag(database, "report", None)
    async with database.transaction() as session:
        await create_manual_run(session, "report")
    first = await _claimed(database, "me")
    began = []
    for _ in range(2):
        await _recovered(database, "other")
        again = await _claimed(database, "me")
        async with database.transaction() as session:
            begin = begin_run(executor="me", run_pk=again.id, epoch=again.epoch)
            assert await perform(session, single_step(begin))
        async with database.reading() as session:
            (view,) = await list_runs(session)
        began.append(view.started_at)
    assert began == [first.started_at] * 2
