"""A result that the store refuses fails its own attempt, and nothing else."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
from structlog.testing import capture_logs

from tests.executor.conftest import House
from tests.run_orders import order
from triggerer.domain.attempt_states import AttemptState
from triggerer.domain.attempts import EmittedEvent, RunEnd, RunOrder, TaskResult, Wait
from triggerer.domain.launches import Launch
from triggerer.domain.runs import RunState, TaskState
from triggerer.errors import RowRefused
from triggerer.executor.result_writer import ResultWriter
from triggerer.observability.metrics import table
from triggerer.store.database.statement import Statement
from triggerer.store.runs.attempts.claims import claim_runs
from triggerer.store.runs.results import AttemptUpdate


def _order(pk: int, attempt: int) -> RunOrder:
    return order(pk, attempt, dag_id="emits", run_id="one")


def _ended(order: RunOrder, extra: str) -> AttemptUpdate:
    now = datetime.now(UTC)
    event = EmittedEvent("x-out", "x-out", {"text": extra}, 0)
    result = TaskResult("t", TaskState.SUCCESS, 1, now, now, events=(event,))
    return AttemptUpdate(order, (result,))


@asynccontextmanager
async def writing(house: House) -> AsyncIterator[tuple[int, ResultWriter]]:
    """Run a result writer. Yield the primary key of a run that its executor executes, and the writer."""
    await house.add_dag("emits", "")
    (pk,) = await house.queue("emits", state="running", executor="one", attempt=1, epoch=1)
    result_writer = ResultWriter(house.database, "one")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(result_writer.run)
        yield pk, result_writer
        tasks.cancel_scope.cancel()


async def test_a_refused_attempt_does_not_fail_the_next_one(any_house: House) -> None:
    house = any_house
    async with writing(house) as (pk, result_writer):
        result_writer.submit_nowait(_ended(_order(pk, 1), "a NUL \0"))
        await result_writer.written()
        assert (await house.tasks(pk))["t"].state == "failed"
        # Simulate that another executor queued the run again, and that this executor then claimed it.
        await house.change_run(pk, attempt=2, epoch=2)
        result_writer.submit_nowait(_ended(_order(pk, 2), "none"))
        end = RunEnd(RunState.SUCCESS, datetime.now(UTC))
        result_writer.submit_nowait(AttemptUpdate(_order(pk, 2), end=end))
        await result_writer.written()
    run = await house.run(pk)
    assert (run.state, run.error) == ("success", None)
    assert (await house.tasks(pk))["t"].state == "success"


async def test_a_refusal_is_forgotten_with_its_run(house: House) -> None:
    await house.add_dag("emits", "")
    pks = await house.queue("emits", 3, state="running", executor="one", attempt=1, epoch=1)
    result_writer = ResultWriter(house.database, "one")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(result_writer.run)
        for pk in pks:
            result_writer.submit_nowait(_ended(_order(pk, 1), "a NUL \0"))
            end = RunEnd(RunState.SUCCESS, datetime.now(UTC))
            result_writer.submit_nowait(AttemptUpdate(_order(pk, 1), end=end))
        await result_writer.written()
        tasks.cancel_scope.cancel()
    assert [(await house.run(pk)).state for pk in pks] == ["failed"] * 3
    assert result_writer._refused == {}


async def test_a_run_with_a_refused_result_is_reported_and_counted_as_failed(house: House) -> None:
    await house.add_dag("emits", "")
    (pk,) = await house.queue("emits", state="running", executor="one", attempt=1, epoch=1)
    result_writer = ResultWriter(house.database, "one")
    table.RUNS.clear()
    with capture_logs() as lines:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(result_writer.run)
            result_writer.submit_nowait(_ended(_order(pk, 1), "a NUL \0"))
            await result_writer.written()
            end = RunEnd(RunState.SUCCESS, datetime.now(UTC))
            result_writer.submit_nowait(AttemptUpdate(_order(pk, 1), end=end))
            await result_writer.written()
            tasks.cancel_scope.cancel()
    counted = table.RUNS.values()
    table.RUNS.clear()
    assert (await house.run(pk)).state == "failed"
    assert counted == {("failed",): 1}
    assert [line["run_id"] for line in lines if line["event"] == "run failed"] == ["one"]


NUL = "a NUL \0"
SOME_TIME = datetime(2026, 9, 21, tzinfo=UTC)


@pytest.mark.parametrize(
    "refused",
    [
        {"launches": (Launch("t", "yarn", AttemptState.RUNNING, SOME_TIME, reason=NUL),)},
        {"wait": Wait(NUL, SOME_TIME)},
    ],
    ids=["launch", "wait"],
)
async def test_a_refused_launch_or_wait_does_not_end_the_writer(
    any_house: House, refused: dict[str, Any]
) -> None:
    house = any_house
    async with writing(house) as (pk, result_writer):
        result_writer.submit_nowait(AttemptUpdate(_order(pk, 1), **refused))
        await result_writer.written()
        end = RunEnd(RunState.SUCCESS, SOME_TIME)
        result_writer.submit_nowait(AttemptUpdate(_order(pk, 1), end=end))
        await result_writer.written()
    run = await house.run(pk)
    assert (run.state, run.error) == ("success", None)


async def test_an_end_with_a_refused_error_is_stored_with_another_error(any_house: House) -> None:
    house = any_house
    async with writing(house) as (pk, result_writer):
        wait = Wait(NUL, SOME_TIME)
        end = RunEnd(RunState.CANCELLED, SOME_TIME, NUL)
        result_writer.submit_nowait(AttemptUpdate(_order(pk, 1), wait=wait, end=end))
        await result_writer.written()
    run = await house.run(pk)
    assert run.state == "cancelled"
    if house.database.dialect == "postgresql":
        assert run.error == "the store refused the error of this run; the service's log says why"


class _RefusesAll:
    """A database that refuses every row."""

    async def perform_steps(self, steps: Any) -> Any:
        raise RowRefused("no")

    @property
    def transport(self) -> Any:
        return SimpleNamespace(sender="me")


async def test_a_store_that_refuses_every_end_ends_the_writer() -> None:
    result_writer = ResultWriter(cast("Any", _RefusesAll()), "one")
    end = RunEnd(RunState.FAILED, SOME_TIME, "an error")
    result_writer.submit_nowait(AttemptUpdate(_order(1, 1), end=end))
    with pytest.raises(RowRefused), anyio.fail_after(30):
        await result_writer.run()


_TOO_LARGE = Statement("UPDATE dag_run SET priority = {n} WHERE id = {pk}")(n=2**70, pk=1)
"""A step that every database refuses."""


@pytest.mark.parametrize("group", ["none", "wait", "launch", "events"])
async def test_a_refused_step_fails_no_other_step_of_its_commit_and_no_update(
    any_house: House, group: str
) -> None:
    house = any_house
    await house.add_dag("emits", "")
    (pk,) = await house.queue("emits", state="running", executor="one", attempt=1, epoch=1)
    waiting = await house.queue("emits", 2)
    result_writer = ResultWriter(house.database, "one")
    launch = Launch("t", "yarn", AttemptState.RUNNING, SOME_TIME)
    updates = {
        "none": [],
        "wait": [AttemptUpdate(_order(pk, 1), wait=Wait("cores", SOME_TIME))],
        "launch": [AttemptUpdate(_order(pk, 1), launches=(launch,))],
        "events": [_ended(_order(pk, 1), "none")],
    }[group]
    claimed: list[int] = []

    async def claim() -> None:
        step = claim_runs(executor="one", limit=1, log_home="/home")
        rows = await result_writer.perform_with_next_commit(step)
        claimed.extend(row[0] for row in rows)

    async def be_refused() -> None:
        with pytest.raises(RowRefused):
            await result_writer.perform_with_next_commit(_TOO_LARGE)

    for update in updates:
        result_writer.submit_nowait(update)
    async with anyio.create_task_group() as writing:
        async with anyio.create_task_group() as joining:
            joining.start_soon(claim)
            joining.start_soon(be_refused)
            joining.start_soon(claim)
            await anyio.wait_all_tasks_blocked()
            writing.start_soon(result_writer.run)
        await result_writer.written()
        writing.cancel_scope.cancel()
    assert sorted(claimed) == waiting
    tasks = await house.tasks(pk)
    assert {name: (one.state, one.error) for name, one in tasks.items()} == (
        {"t": ("success", None)} if group == "events" else {}
    )
