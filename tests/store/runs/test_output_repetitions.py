"""Clearing a task begins a new repetition of its output; a retry does not. An old attempt may not commit outputs."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import select, update

from tests.actors import TESTER
from tests.store.seeding import add_dag
from triggerer.domain.attempts import Repeat
from triggerer.operations.runs import clear_run, retry_run
from triggerer.store.database.transactions import Database
from triggerer.store.runs.current_attempt import is_current
from triggerer.store.schema.models import Dag, DagRun, TaskRun

TASKS = [{"task_id": "a", "upstream": []}, {"task_id": "b", "upstream": ["a"]}]


async def _add_run(database: Database) -> None:
    await add_dag(database, "d", None, tasks=TASKS)
    async with database.transaction() as session:
        now = datetime.now(UTC)
        values = {"dag_id": "d", "run_id": "r", "run_type": "manual", "state": "queued"}
        session.add(DagRun(**values, run_after=now, queued_at=now))


async def _end(database: Database, **states: str) -> None:
    """End the run's attempt, with these states of its tasks."""
    async with database.transaction() as session:
        run = (await session.scalars(select(DagRun))).one()
        failed = "failed" in states.values()
        run.state, run.attempt = "failed" if failed else "success", run.attempt + 1
        for task_id, state in states.items():
            await session.merge(TaskRun(run_pk=run.id, task_id=task_id, state=state))


async def _repetitions(database: Database) -> dict[str, int]:
    async with database.reading() as session:
        again = (await session.scalars(select(DagRun.again))).one()
    return dict(Repeat.from_json(again).cleared)


async def _retry(database: Database) -> dict[str, int]:
    async with database.transaction() as session:
        await retry_run(session, TESTER, "d", "r")
    return await _repetitions(database)


async def _clear(database: Database, *tasks: str) -> dict[str, int]:
    async with database.transaction() as session:
        await clear_run(session, TESTER, "d", "r", tasks=tasks)
    return await _repetitions(database)


async def test_clearings_are_counted_by_task_and_retries_keep_the_count(database: Database) -> None:
    await _add_run(database)
    await _end(database, a="success", b="failed")
    assert await _retry(database) == {}
    await _end(database, a="success", b="success")
    assert await _clear(database) == {"a": 1, "b": 1}
    await _end(database, a="failed", b="upstream_failed")
    assert await _retry(database) == {"a": 1, "b": 1}
    await _end(database, a="success", b="failed")
    assert await _retry(database) == {"a": 1, "b": 1}
    await _end(database, a="success", b="failed")
    assert await _clear(database, "b") == {"a": 1, "b": 2}
    await _end(database, a="success", b="success")
    assert await _clear(database, "a") == {"a": 2, "b": 3}
    await _end(database, a="success", b="failed")
    assert await _retry(database) == {"a": 2, "b": 3}
    await _end(database, a="success", b="success")
    assert await _clear(database) == {"a": 3, "b": 4}


async def test_a_task_that_its_file_lacks_for_a_while_is_cleared_with_the_run(
    database: Database,
) -> None:
    await _add_run(database)
    await _end(database, a="success", b="success")
    async with database.transaction() as session:
        await session.execute(update(Dag).values(tasks=TASKS[:1]))
    assert await _clear(database) == {"a": 1, "b": 1}
    await _end(database, a="success")
    assert await _clear(database) == {"a": 2, "b": 2}


async def test_one_attempt_of_a_running_run_may_commit(database: Database) -> None:
    await _add_run(database)

    async def may_commit(executor: str, epoch: int) -> bool:
        async with database.reading() as session:
            pk = (await session.scalars(select(DagRun.id))).one()
            return await is_current(session, executor=executor, run_pk=pk, epoch=epoch)

    async def change(**values: object) -> None:
        async with database.transaction() as session:
            await session.execute(update(DagRun).values(**values))

    await change(state="running", executor="a", epoch=1)
    assert await may_commit("a", 1)
    assert not await may_commit("b", 1)
    # The executor was taken for dead, and nobody has claimed the run yet.
    await change(state="queued", executor=None)
    assert not await may_commit("a", 1)
    await change(state="running", executor="b", epoch=2)
    assert not await may_commit("a", 1)
    assert await may_commit("b", 2)
    await change(state="failed")
    assert not await may_commit("b", 2)
