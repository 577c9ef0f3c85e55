"""`read_overview` returns the runs that need a person, in order, with a bounded number of statements."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import event, insert

from tests.store.seeding import add_dag
from triggerer.store.audit.cleanings import begin_turn, end_turn, make_state
from triggerer.store.database.transactions import Database
from triggerer.store.listing.overview import Overview, read_overview
from triggerer.store.schema.models import DagRun


def run(number: int, state: str, **columns: Any) -> dict[str, Any]:
    at = datetime.now(UTC) - timedelta(hours=2)
    row = {"id": number, "dag_id": "d", "run_id": f"r{number}", "run_type": "manual"}
    return row | {"state": state, "run_after": at, "queued_at": at, **columns}


async def read(database: Database) -> tuple[Overview, int]:
    """The overview, and the number of statements that it took."""
    statements: list[str] = []
    async with database.reading() as session:
        connection = (await session.connection()).sync_connection

        def count(_: Any, __: Any, statement: str, *___: Any) -> None:
            statements.append(statement)

        event.listen(connection, "before_cursor_execute", count)
        try:
            return await read_overview(session), len(statements)
        finally:
            event.remove(connection, "before_cursor_execute", count)


async def test_the_runs_of_an_overview_are_in_order_and_cost_no_statement_each(
    database: Database,
) -> None:
    await add_dag(database, "d", None)
    _, without_runs = await read(database)
    now = datetime.now(UTC)
    # The higher the number, the earlier the run was queued.
    waiting = [run(n, "queued", queued_at=now - timedelta(minutes=6 + n)) for n in range(1, 11)]
    failed = [run(n, "failed", ended_at=now - timedelta(minutes=n)) for n in range(11, 21)]
    async with database.transaction() as session:
        await session.execute(insert(DagRun), waiting)
        await session.execute(insert(DagRun), failed)
    found, statements = await read(database)
    assert [one.run_id for one in found.waiting_runs] == [f"r{n}" for n in range(10, 0, -1)]
    assert [one.run_id for one in found.failed_runs] == [f"r{n}" for n in range(20, 10, -1)]
    assert statements < without_runs + 10


async def test_the_error_of_the_last_cleaning_is_shown_until_a_cleaning_succeeds(
    database: Database,
) -> None:
    async with database.transaction() as session:
        await make_state(session)
        await begin_turn(session, "one")
        await end_turn(session, "one", error="the disk is away")
    found, _ = await read(database)
    assert (found.cleaning_error, found.cleaning_failed_at is None) == ("the disk is away", False)
    async with database.transaction() as session:
        await begin_turn(session, "two")
        await end_turn(session, "two", deleted={})
    found, _ = await read(database)
    assert (found.cleaning_error, found.cleaning_failed_at) == (None, None)
