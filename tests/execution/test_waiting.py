"""What a run waits for, from the executor into the store, on each database."""

from datetime import UTC, datetime

import anyio

from tests.execution.conftest import House
from triggerer.domain.runs import RunState
from triggerer.execution.bookkeeper import Bookkeeper, Entry
from triggerer.execution.claims import Claims
from triggerer.execution.protocol import RunEnd, Wait

AT = datetime(2026, 1, 1, tzinfo=UTC)
NOTHING = """
    with DAG("nothing"):
        pass
    """


async def test_a_wait_is_written_in_order_with_other_results(any_house: House) -> None:
    house = any_house
    await house.add_dag("nothing", NOTHING)
    pks = await house.queue("nothing", 2)
    claims = Claims(house.database, "me", house.home)
    (rows,) = await house.database.each([claims.claiming(2)])
    first, second = claims.claimed(rows)
    bookkeeper = Bookkeeper(house.database, "me")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bookkeeper.run)
        bookkeeper.submit_nowait(Entry(first, wait=Wait("cores", AT)))
        bookkeeper.submit_nowait(Entry(second, wait=Wait("cores", AT)))
        await bookkeeper.written()
        runs = [await house.run(pk) for pk in pks]
        assert [(run.waiting_for, run.waiting_since) for run in runs] == [("cores", AT)] * 2
        # In one transaction.
        bookkeeper.submit_nowait(Entry(first, wait=Wait(None, AT)))
        bookkeeper.submit_nowait(Entry(second, end=RunEnd(RunState.SUCCESS, AT)))
        bookkeeper.submit_nowait(Entry(first, wait=Wait("more cores", AT)))
        await bookkeeper.written()
        tasks.cancel_scope.cancel()
    runs = [await house.run(pk) for pk in pks]
    assert [(run.state, run.waiting_for) for run in runs] == [
        ("running", "more cores"),
        ("success", "cores"),
    ]
