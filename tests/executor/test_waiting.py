"""The executor stores the reason why a run waits, on each database."""

from datetime import UTC, datetime

import anyio

from tests.executor.conftest import House
from triggerer.domain.attempts import RunEnd, Wait
from triggerer.domain.runs import RunState
from triggerer.executor.claims import Claims
from triggerer.executor.result_writer import ResultWriter
from triggerer.store.runs.results import AttemptUpdate

AT = datetime(2026, 1, 1, tzinfo=UTC)
NOTHING = """
    with DAG("nothing"):
        pass
    """


async def test_a_wait_is_written_in_order_with_other_results(any_house: House) -> None:
    house = any_house
    await house.add_dag("nothing", NOTHING)
    pks = await house.queue("nothing", 2)
    claims = Claims(house.database, "me", house.home, {})
    (rows,) = await house.database.perform_steps([claims.claim_step(2)])
    first, second = claims.claimed(rows)
    result_writer = ResultWriter(house.database, "me")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(result_writer.run)
        result_writer.submit_nowait(AttemptUpdate(first, wait=Wait("cores", AT)))
        result_writer.submit_nowait(AttemptUpdate(second, wait=Wait("cores", AT)))
        await result_writer.written()
        runs = [await house.run(pk) for pk in pks]
        assert [(run.waiting_for, run.waiting_since) for run in runs] == [("cores", AT)] * 2
        # Both updates are in one transaction.
        result_writer.submit_nowait(AttemptUpdate(first, wait=Wait(None, AT)))
        result_writer.submit_nowait(AttemptUpdate(second, end=RunEnd(RunState.SUCCESS, AT)))
        result_writer.submit_nowait(AttemptUpdate(first, wait=Wait("more cores", AT)))
        await result_writer.written()
        tasks.cancel_scope.cancel()
    runs = [await house.run(pk) for pk in pks]
    assert [(run.state, run.waiting_for) for run in runs] == [
        ("running", "more cores"),
        ("success", "cores"),
    ]
