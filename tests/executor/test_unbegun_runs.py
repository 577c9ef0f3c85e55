"""A run that could not begin is queued again, also if the store is away at that moment."""

from datetime import UTC, datetime
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from tests.executor.conftest import House
from tests.run_orders import order
from triggerer.domain.attempts import RunEnd, Wait
from triggerer.domain.runs import RunState
from triggerer.errors import OutcomeUnknown
from triggerer.executor.result_writer import ResultWriter
from triggerer.observability.metrics import table
from triggerer.store.database.transactions import Database
from triggerer.store.database.wakeups.signals import Signal
from triggerer.store.runs.results import AttemptUpdate


@pytest.mark.parametrize("failing", [1, 2])
@pytest.mark.parametrize("is_blocked", [False, True])
async def test_a_run_that_is_queued_again_is_not_reported_as_ended(
    any_house: House, monkeypatch: pytest.MonkeyPatch, failing: int, is_blocked: bool
) -> None:
    """The first transaction holds the run, the second stores other results. Neither outcome is known at first."""
    house = any_house
    await house.add_dag("d", "")
    values = {"state": "running", "executor": "one", "attempt": 1, "epoch": 1}
    values["started_at"] = values["first_started_at"] = datetime.now(UTC)
    unbegun, other = [
        order(pk, 1, run_id=f"manual__{n}")
        for n, pk in enumerate(await house.queue("d", 2, **values), start=1)
    ]
    perform_steps, calls = Database.perform_steps, 0

    async def perform(database: Database, steps: Any) -> Any:
        nonlocal calls
        calls += 1
        rows = await perform_steps(database, steps)
        if calls == failing:
            raise OutcomeUnknown("the connection broke")
        return rows

    monkeypatch.setattr(Database, "perform_steps", perform)
    result_writer = ResultWriter(house.database, "one")
    table.RUNS.clear()
    with capture_logs() as lines, house.database.wakeups.subscribe(Signal.RUNS_ENDED) as ended:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(result_writer.run)
            end = RunEnd(RunState.FAILED, datetime.now(UTC), "d.py could not be loaded")
            held = AttemptUpdate(
                unbegun, end=end, is_unloaded=not is_blocked, is_blocked=is_blocked
            )
            result_writer.submit_nowait(held)
            wait = Wait("cores", datetime.now(UTC))
            result_writer.submit_nowait(AttemptUpdate(other, wait=wait))
            await result_writer.written()
            tasks.cancel_scope.cancel()
        with anyio.move_on_after(0.1):
            assert not await ended.wait()
    counted = table.RUNS.values()
    table.RUNS.clear()
    assert [(await house.run(one.run_pk)).state for one in (unbegun, other)] == [
        "queued",
        "running",
    ]
    assert counted == {}
    assert "run failed" not in [line["event"] for line in lines]
