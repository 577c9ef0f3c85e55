"""Every change that somebody asks for has a row in the audit, in the transaction of the change."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from tests.store.seeding import add_asset, add_dag, add_stream
from triggerer.domain.actors import Actor, Role
from triggerer.errors import MoveRefused, UnknownDag
from triggerer.operations.audit import Action
from triggerer.operations.cleaning import Limits, clean
from triggerer.operations.deleting import delete_asset, delete_dag
from triggerer.operations.emitting import emit_event
from triggerer.operations.pausing import pause_dag, unpause_dag
from triggerer.operations.runs import cancel_run, clear_run, retry_run
from triggerer.operations.triggering import trigger_dag
from triggerer.store.audit.listing import list_audit
from triggerer.store.database.transactions import Database
from triggerer.store.listing.views import AuditView

ANNE = Actor("anne", Role.OPERATOR, "token:7", "req-1")


async def change(
    database: Database, do: Callable[[AsyncSession], Awaitable[object]]
) -> list[AuditView]:
    """Make a change; return the rows of the audit, newest first."""
    async with database.transaction() as session:
        await do(session)
    return await rows(database)


async def rows(database: Database, **filters: Any) -> list[AuditView]:
    async with database.reading() as session:
        return await list_audit(session, **filters)


async def test_a_pause_is_recorded_once_with_its_actor_and_both_states(database: Database) -> None:
    await add_dag(database, "d", None)
    first, *rest = await change(database, lambda session: pause_dag(session, ANNE, "d"))
    assert not rest
    assert (first.actor, first.role, first.via, first.request_id) == (
        "anne",
        "operator",
        "token:7",
        "req-1",
    )
    assert (first.action, first.subject) == (Action.DAG_PAUSE, "d")
    assert (first.before, first.after) == ({"is_paused": False}, {"is_paused": True})
    assert abs(first.at - datetime.now(UTC)) < timedelta(minutes=1)
    # The DAG is paused already, so nothing changes.
    assert len(await change(database, lambda session: pause_dag(session, ANNE, "d"))) == 1
    assert len(await change(database, lambda session: unpause_dag(session, ANNE, "d"))) == 2


async def test_a_change_that_is_refused_or_rolled_back_leaves_no_row(database: Database) -> None:
    with pytest.raises(UnknownDag):
        await change(database, lambda session: pause_dag(session, ANNE, "nobody"))
    await add_dag(database, "d", None)

    async def pause_and_fail(session: AsyncSession) -> None:
        await pause_dag(session, ANNE, "d")
        raise MoveRefused("later in the same transaction")

    with pytest.raises(MoveRefused):
        await change(database, pause_and_fail)
    assert await rows(database) == []


async def test_secrets_in_parameters_are_hidden(database: Database) -> None:
    await add_dag(database, "d", None)
    params = {"password": "hunter22", "url": "https://u:topsecret@h/"}
    (row,) = await change(
        database, lambda session: trigger_dag(session, ANNE, "d", run_id="r", params=params)
    )
    assert row.subject == "d r"
    assert row.after is not None
    assert "hunter22" not in str(row.after)
    assert "topsecret" not in str(row.after)


async def test_the_list_filters_by_actor_action_and_subject(database: Database) -> None:
    await add_dag(database, "d", None)
    await add_dag(database, "d_2", None)

    async def all_kinds(session: AsyncSession) -> None:
        await trigger_dag(session, ANNE, "d", run_id="r")
        await cancel_run(session, ANNE, "d", "r")
        await retry_run(session, ANNE, "d", "r")
        await cancel_run(session, ANNE, "d", "r")
        await clear_run(session, ANNE, "d", "r")
        await pause_dag(session, Actor("bob", Role.ADMIN, "cli"), "d_2")
        await emit_event(session, ANNE, "x-test:new", {"password": "x"}, create=True)

    assert len(await change(database, all_kinds)) == 7
    assert [row.action for row in await rows(database, actor="bob")] == ["dag.pause"]
    assert [row.action for row in await rows(database, action="run")] == [
        "run.clear",
        "run.cancel",
        "run.retry",
        "run.cancel",
    ]
    assert len(await rows(database, action="run.cancel")) == 2
    assert {row.subject for row in await rows(database, subject="d")} == {"d r"}
    assert [row.subject for row in await rows(database, subject="d_2")] == ["d_2"]
    # The audit leaves out the extra, because it is users' data. The event has it.
    (emitted,) = await rows(database, action="asset")
    assert emitted.after is not None
    assert emitted.after.keys() == {"event", "partition_key"}


async def test_a_deletion_in_steps_is_recorded_with_its_first_step(database: Database) -> None:
    await add_stream(database)
    await add_asset(database, 1, "orders")
    await add_dag(database, "d", None, is_stale=True)
    await delete_asset(database, ANNE, "orders")
    await delete_dag(database, ANNE, "d")
    before = datetime.now(UTC) - timedelta(days=1)
    for dry_run in (True, False):
        await clean(
            database,
            ANNE,
            Limits().with_events_and_runs(before),
            ack_timeout=timedelta(seconds=1),
            dry_run=dry_run,
        )
    assert [(row.action, row.subject) for row in await rows(database)] == [
        ("database.clean", "database"),
        ("dag.delete", "d"),
        ("asset.delete", "orders"),
    ]
