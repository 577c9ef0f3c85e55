"""Runs that an operator repeats, with `runs retry` and `runs clear`, in real workers."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import update

from tests.actors import TESTER
from tests.executor.conftest import House
from triggerer.domain.runs import RunState
from triggerer.errors import DagError, MoveRefused, UnknownRun
from triggerer.operations.runs import clear_run, retry_run
from triggerer.store.schema.models import Dag, DagRun

DAG = """
    kept, needed, out = Asset("x-kept"), Asset("x-needed"), Asset("x-out")
    with DAG("d"):
        @task(outlets=kept)
        def keeps():
            print("executing keeps")

        @task(outlets=needed)
        def gives():
            print("executing gives")
            return 7

        @task(outlets=out)
        def fails(value, params):
            print("executing fails", value)
            if not Path(params["may_pass"]).exists():
                raise ValueError("not yet")

        @task
        def after():
            print("executing after")

        keeps() >> fails(gives()) >> after()
"""
TASKS = [("keeps", ()), ("gives", ()), ("fails", ("keeps", "gives")), ("after", ("fails",))]
ALL = ["keeps", "gives", "fails", "after"]


async def _failed(house: House) -> tuple[DagRun, Path]:
    """Return a run whose third task has failed, and the file that lets the task pass."""
    await house.add_dag("d", DAG, tasks=TASKS)
    may_pass = house.folder / "may_pass"
    (pk,) = await house.queue("d", params={"may_pass": str(may_pass)})
    (run,) = await house.ended(pk)
    assert run.state == "failed"
    return run, may_pass


async def _retry(house: House, run: DagRun) -> None:
    async with house.database.transaction() as session:
        await retry_run(session, TESTER, run.dag_id, run.run_id)


async def _clear(house: House, run: DagRun, *tasks: str) -> list[str]:
    async with house.database.transaction() as session:
        return await clear_run(session, TESTER, run.dag_id, run.run_id, tasks=tasks)


def _executed(house: House, run: DagRun) -> list[str]:
    """Return the printed lines of the tasks in all attempts, in order."""
    lines = house.log(run).splitlines()
    return [line.split()[1] for line in lines if line.startswith("executing")]


async def _emitted(house: House) -> dict[str, int]:
    return {uri: len(await house.events(uri)) for uri in ("x-kept", "x-needed", "x-out")}


async def test_a_retried_run_leaves_what_has_succeeded_and_emits_nothing_twice(
    any_house: House,
) -> None:
    house = any_house
    async with house.executor():
        run, may_pass = await _failed(house)
        assert _executed(house, run) == ["keeps", "gives", "fails"]
        assert await _emitted(house) == {"x-kept": 1, "x-needed": 1, "x-out": 0}
        may_pass.touch()
        await _retry(house, run)
        (again,) = await house.ended(run.id)
    assert (again.state, again.error, again.attempt) == ("success", None, 2)
    assert again.ended_at is not None
    assert run.ended_at is not None
    assert again.ended_at > run.ended_at
    # `gives` runs again, because its result is needed and was only in the first worker's memory.
    assert _executed(house, run)[3:] == ["gives", "fails", "after"]
    assert await _emitted(house) == {"x-kept": 1, "x-needed": 1, "x-out": 1}
    tasks = await house.tasks(run.id)
    assert {name: row.state for name, row in tasks.items()} == dict.fromkeys(ALL, "success")


async def test_a_cleared_run_is_executed_whole_and_emits_its_events_anew(any_house: House) -> None:
    house = any_house
    async with house.executor():
        run, may_pass = await _failed(house)
        may_pass.touch()
        assert await _clear(house, run) == ALL
        (again,) = await house.ended(run.id)
        assert again.state == "success"
        assert _executed(house, run)[3:] == ALL
        assert await _emitted(house) == {"x-kept": 2, "x-needed": 2, "x-out": 1}
        # Repeat it again, from success.
        assert await _clear(house, run) == ALL
        await house.ended(run.id)
    assert await _emitted(house) == {"x-kept": 3, "x-needed": 3, "x-out": 2}


async def test_a_cleared_task_is_executed_with_what_waits_for_it(any_house: House) -> None:
    house = any_house
    async with house.executor():
        run, may_pass = await _failed(house)
        may_pass.touch()
        await _retry(house, run)
        await house.ended(run.id)
        before = len(_executed(house, run))
        assert await _clear(house, run, "fails") == ["fails", "after"]
        assert set(await house.tasks(run.id)) >= {"keeps", "gives"}
        (again,) = await house.ended(run.id)
    assert again.state == "success"
    # `gives` runs for its result only. It was not cleared, so it emits no further event.
    assert _executed(house, run)[before:] == ["gives", "fails", "after"]
    assert await _emitted(house) == {"x-kept": 1, "x-needed": 1, "x-out": 2}


async def test_a_failed_task_that_is_not_cleared_still_fails_its_run(house: House) -> None:
    async with house.executor():
        run, may_pass = await _failed(house)
        may_pass.touch()
        await _clear(house, run, "after")
        (again,) = await house.ended(run.id)
    assert again.state == "failed"
    assert again.error == "task fails was left as it is: failed"
    assert (await house.tasks(run.id))["after"].state == "upstream_failed"


async def test_a_run_that_has_not_ended_or_has_succeeded_is_not_retried(house: House) -> None:
    await house.add_dag("d", DAG, tasks=TASKS)
    (pk,) = await house.queue("d")
    run = await house.run(pk)
    for state in (RunState.QUEUED, RunState.RUNNING):
        await house.change_run(pk, state=state.value)
        for repeat in (_retry, _clear):
            with pytest.raises(MoveRefused, match=f"is {state}"):
                await repeat(house, run)
    await house.change_run(pk, state="success")
    with pytest.raises(MoveRefused, match="has succeeded"):
        await _retry(house, run)
    with pytest.raises(DagError, match="has no task 'nothing'"):
        await _clear(house, run, "nothing")
    with pytest.raises(UnknownRun):
        async with house.database.transaction() as session:
            await retry_run(session, TESTER, "d", "nobody")
    async with house.database.transaction() as session:
        await session.execute(update(Dag).values(is_stale=True))
    with pytest.raises(DagError, match="is gone from its file"):
        await _clear(house, run)
    assert (await house.run(pk)).state == "success"


async def test_attempts_from_before_a_retry_do_not_count_for_giving_up(any_house: House) -> None:
    house = any_house
    await house.add_dag("d", DAG, tasks=TASKS)
    (pk,) = await house.queue("d", state="failed", attempt=3, params={"may_pass": "/"})
    await _retry(house, await house.run(pk))
    # An executor died while it executed the run, for the first time since the retry.
    now = datetime.now(UTC)
    await house.change_run(pk, state="running", attempt=4, executor="dead", started_at=now)
    async with house.executor():
        (run,) = await house.ended(pk)
    assert (run.state, run.attempt) == ("success", 5)
    await house.change_run(pk, state="running", attempt=6, executor="dead", started_at=now)
    async with house.executor():
        (run,) = await house.ended(pk)
    assert run.error is not None
    assert run.error.startswith("given up after 3 attempts")


async def test_a_cancelled_run_can_be_retried(house: House) -> None:
    await house.add_dag("d", DAG, tasks=TASKS)
    (pk,) = await house.queue("d", params={"may_pass": "/"})
    await house.cancel(pk)
    assert (await house.run(pk)).state == "cancelled"
    await _retry(house, await house.run(pk))
    async with house.executor():
        (run,) = await house.ended(pk)
    assert (run.state, run.cancel_requested) == ("success", False)
