"""Many runs are queued again at once, on each database: the choice, the order and the refusals."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import select, update

from tests.actors import TESTER
from tests.store.seeding import add_dag
from triggerer.domain.actors import Actor
from triggerer.domain.runs import RunState
from triggerer.errors import StoreUnavailable, UnknownDag
from triggerer.operations import many_runs
from triggerer.operations.many_runs import RepeatedRun, choose, plan_repeats, repeat_runs
from triggerer.store.database.transactions import Database
from triggerer.store.database.wakeups.signals import Signal
from triggerer.store.runs.ended import EndedRuns
from triggerer.store.schema.models import Dag, DagRun

UNSUCCESSFUL = (RunState.FAILED, RunState.CANCELLED)
TASKS = [{"task_id": "t", "upstream": []}]


def day(number: int) -> datetime:
    return datetime(2026, 1, number, tzinfo=UTC)


async def _add(database: Database, number: int, state: str, dag: str = "d") -> None:
    async with database.transaction() as session:
        session.add(
            DagRun(
                dag_id=dag,
                run_id=f"r{number}",
                run_type="manual",
                state=state,
                run_after=day(number),
                queued_at=day(number),
            )
        )


async def _queued(database: Database) -> list[str]:
    async with database.reading() as session:
        query = select(DagRun.run_id).where(DagRun.state == "queued").order_by(DagRun.id)
        return list(await session.scalars(query))


async def _repeat(database: Database, choice: EndedRuns, **options: Any) -> list[RepeatedRun]:
    async with database.reading() as session:
        chosen = await choose(session, choice)
    return [
        run async for batch in repeat_runs(database, TESTER, chosen, **options) for run in batch
    ]


async def _plan(database: Database, choice: EndedRuns, **options: Any) -> list[RepeatedRun]:
    async with database.reading() as session:
        chosen = await choose(session, choice)
    return [run async for batch in plan_repeats(database, chosen, **options) for run in batch]


@pytest.fixture
async def runs(database: Database, monkeypatch: pytest.MonkeyPatch) -> Database:
    """Add runs of two DAGs in every state, oldest first. Each transaction repeats at most two runs."""
    monkeypatch.setattr(many_runs, "_AT_ONCE", 2)
    for name in ("d", "e"):
        await add_dag(database, name, None, tasks=TASKS)
    states = ("failed", "success", "cancelled", "failed", "running", "failed")
    for number, state in enumerate(states, start=1):
        await _add(database, number, state)
    await _add(database, 7, "failed", dag="e")
    return database


@pytest.mark.parametrize(
    ("choice", "clear", "expected"),
    [
        (EndedRuns(UNSUCCESSFUL), False, ["r1", "r3", "r4", "r6", "r7"]),
        (EndedRuns([RunState.CANCELLED]), False, ["r3"]),
        (EndedRuns(UNSUCCESSFUL, dag="e"), False, ["r7"]),
        (EndedRuns(UNSUCCESSFUL, start=day(3), end=day(6)), False, ["r3", "r4", "r6"]),
        (EndedRuns([RunState.SUCCESS, *UNSUCCESSFUL], dag="d", end=day(2)), True, ["r1", "r2"]),
    ],
    ids=["all", "state", "dag", "range", "clear"],
)
async def test_the_chosen_runs_are_queued_oldest_first_as_the_plan_said(
    runs: Database, choice: EndedRuns, clear: bool, expected: list[str]
) -> None:
    planned = await _plan(runs, choice)
    assert await _queued(runs) == []
    assert [run.run_id for run in planned] == expected
    with runs.wakeups.subscribe(Signal.RUNS_QUEUED) as wakeups:
        assert await _repeat(runs, choice, clear=clear) == planned
        assert Signal.RUNS_QUEUED in await wakeups.wait()
    assert await _queued(runs) == expected


async def test_one_task_of_many_runs_is_cleared_and_a_dag_without_it_is_refused(
    runs: Database,
) -> None:
    async with runs.transaction() as session:
        await session.execute(update(Dag).where(Dag.dag_id == "e").values(tasks=[]))
    choice = EndedRuns([RunState.FAILED])
    planned = await _plan(runs, choice, tasks=["t"])
    assert await _repeat(runs, choice, clear=True, tasks=["t"]) == planned
    assert [run.refused for run in planned] == [None] * 3 + ["the DAG 'e' has no task 't'"]
    assert await _queued(runs) == ["r1", "r4", "r6"]


async def test_a_run_of_a_dag_whose_file_is_gone_is_refused_alone(runs: Database) -> None:
    async with runs.transaction() as session:
        await session.execute(update(Dag).where(Dag.dag_id == "d").values(is_stale=True))
    choice = EndedRuns(UNSUCCESSFUL)
    planned = await _plan(runs, choice)
    assert await _repeat(runs, choice, clear=False) == planned
    assert [run.refused for run in planned] == ["the DAG 'd' is gone from its file d.py"] * 4 + [
        None
    ]
    assert await _queued(runs) == ["r7"]


async def test_a_run_that_changed_after_the_choice_or_was_made_then_is_passed_over(
    runs: Database,
) -> None:
    async with runs.reading() as session:
        chosen = await choose(session, EndedRuns(UNSUCCESSFUL))
    assert (chosen.runs, chosen.dags) == (5, 2)
    await _add(runs, 8, "failed")
    batches = repeat_runs(runs, TESTER, chosen, clear=False)
    first = await anext(batches)
    # Meanwhile somebody else repeats `r4`, and `r1` ends in the same state again.
    async with runs.transaction() as session:
        for run_id, state in (("r4", "running"), ("r1", "failed")):
            await session.execute(update(DagRun).where(DagRun.run_id == run_id).values(state=state))
    rest = [run.run_id async for batch in batches for run in batch]
    assert [run.run_id for run in first] == ["r1", "r3"]
    assert rest == ["r6", "r7"]


async def test_runs_queued_before_a_failure_stay_and_a_repeat_does_the_rest(
    runs: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    retry_run = many_runs.retry_run

    async def fail(session: Any, actor: Actor, dag_id: str, run_id: str) -> None:
        if run_id == "r6":
            raise StoreUnavailable("gone")
        await retry_run(session, actor, dag_id, run_id)

    with monkeypatch.context() as patch:
        patch.setattr(many_runs, "retry_run", fail)
        with pytest.raises(StoreUnavailable):
            await _repeat(runs, EndedRuns(UNSUCCESSFUL), clear=False)
    # The second transaction, of r4 and r6, was rolled back.
    assert await _queued(runs) == ["r1", "r3"]
    done = await _repeat(runs, EndedRuns(UNSUCCESSFUL), clear=False)
    assert [run.run_id for run in done] == ["r4", "r6", "r7"]


async def test_a_dag_that_there_is_not_is_no_empty_choice(runs: Database) -> None:
    async with runs.reading() as session:
        with pytest.raises(UnknownDag):
            await choose(session, EndedRuns(UNSUCCESSFUL, dag="nope"))
