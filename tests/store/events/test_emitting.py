from typing import Any

import pytest

from tests.store.seeding import (
    add_alias,
    add_asset,
    add_dag,
    asset_json,
    emit,
    events_in,
    queue_of,
)
from triggerer.domain.assets import Asset
from triggerer.errors import AssetConflict, DagError, RowRefused
from triggerer.store.database.statement import BoundStatement, Statement
from triggerer.store.database.transactions import Database
from triggerer.store.database.wakeups.signals import Signal
from triggerer.store.events.emit import NewAssetEvent, record_events
from triggerer.store.events.undeclared_assets import ensure_asset, ensure_assets
from triggerer.store.schema.models import AssetAliasMember


async def _record(database: Database, *events: NewAssetEvent) -> list[int]:
    async with database.transaction() as session:
        return await record_events(session, events)


async def test_an_emitted_event_knows_its_source_and_is_queued(database: Database) -> None:
    await add_asset(database, 1, "report")
    await add_dag(database, "next", asset_json("report"), assets=[1])
    subscription = database.wakeups.subscribe(Signal.EVENTS_QUEUED)
    ids = await _record(
        database,
        NewAssetEvent(1, {"rows": 3}, "dag/run/task/report", 0, None, "dag", "run", "task"),
        NewAssetEvent(1),
    )
    first, second = await events_in(database)
    assert [first.id, second.id] == ids
    assert (first.source_dag_id, first.source_run_id, first.source_task_id) == (
        "dag",
        "run",
        "task",
    )
    assert (first.extra, second.extra) == ({"rows": 3}, {})
    assert second.source_dag_id is None
    assert await queue_of(database, "next") == [(event_id, None) for event_id in ids]
    assert subscription.take_nowait() == {Signal.EVENTS_QUEUED: {"next"}}


async def test_a_repeated_task_emits_nothing_twice(database: Database) -> None:
    await add_asset(database, 1, "report")
    await add_dag(database, "next", asset_json("report"), assets=[1])
    event = NewAssetEvent(1, {"try": 1}, "dag/run/task/report")
    assert len(await _record(database, event)) == 1
    subscription = database.wakeups.subscribe(Signal.EVENTS_QUEUED)
    assert await _record(database, event) == []
    assert len(await queue_of(database, "next")) == 1
    assert subscription.take_nowait() == {}


async def test_an_event_on_an_alias_is_queued_for_dags_that_wait_for_the_alias(
    database: Database,
) -> None:
    await add_asset(database, 1, "report")
    await add_alias(database, 5, "results")
    await add_dag(database, "by-asset", asset_json("report"), assets=[1])
    await add_dag(database, "by-alias", {"alias": "results"}, aliases=[5])
    await add_dag(
        database,
        "by-both",
        {"any": [{"alias": "results"}, asset_json("report")]},
        assets=[1],
        aliases=[5],
    )
    (plain,) = await _record(database, NewAssetEvent(1))
    (aliased,) = await _record(database, NewAssetEvent(1, {}, "key", alias_ids=(5,)))
    assert await _record(database, NewAssetEvent(1, {}, "key", alias_ids=(5,))) == []
    assert await queue_of(database, "by-asset") == [(plain, None), (aliased, None)]
    assert await queue_of(database, "by-alias") == [(aliased, None)]
    assert await queue_of(database, "by-both") == [(plain, None), (aliased, None)]
    async with database.reading() as session:
        assert await session.get(AssetAliasMember, (5, 1)) is not None


async def test_many_events_on_aliases_cost_no_statement_each(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add_asset(database, 1, "report")
    await add_alias(database, 5, "results")
    await add_alias(database, 6, "unread")
    await add_dag(database, "by-alias", {"alias": "results"}, aliases=[5])
    statements = 0
    perform_step = Statement.__call__

    def counted(self: Statement, **values: Any) -> BoundStatement:
        nonlocal statements
        statements += 1
        return perform_step(self, **values)

    monkeypatch.setattr(Statement, "__call__", counted)
    new = [NewAssetEvent(1, {}, "key", number, alias_ids=(5, 6)) for number in range(300)]
    ids = await _record(database, *new[:100])
    # The first hundred events are repeats, so they stay queued once.
    ids += await _record(database, *new)
    assert len(ids) == 300
    assert statements < 10
    assert await queue_of(database, "by-alias") == [(event_id, None) for event_id in ids]
    async with database.reading() as session:
        assert await session.get(AssetAliasMember, (6, 1)) is not None


async def test_an_emitted_event_may_have_a_partition_key(database: Database) -> None:
    await add_asset(database, 1, "report")
    await _record(database, NewAssetEvent(1, partition_key="2026-01-01"), NewAssetEvent(1))
    assert [event.partition_key for event in await events_in(database)] == ["2026-01-01", None]
    with pytest.raises(RowRefused, match="partition key"):
        await _record(database, NewAssetEvent(1, partition_key=""))


async def test_an_event_that_cannot_be_stored_takes_the_whole_transaction_back(
    database: Database,
) -> None:
    await add_asset(database, 1, "report")
    with pytest.raises(RowRefused):
        await _record(database, NewAssetEvent(1), NewAssetEvent(1, {"text": "\0"}))
    assert await events_in(database) == []


async def test_an_asset_that_nobody_declares_is_made(database: Database) -> None:
    async with database.transaction() as session:
        made = await ensure_asset(session, uri="x-test://new")
        assert await ensure_asset(session, name="x-test://new") == made
        assert await ensure_asset(session, name="x-test://new", uri="x-test://new") == made
    assert await emit(database, made.id)


async def test_assets_that_nobody_declares_are_made_together(database: Database) -> None:
    await add_asset(database, 1_000, "flights")
    new = [Asset(f"x-test://{number}", name=str(number)) for number in range(30)]
    known = Asset("x-test://flights", name="flights")
    async with database.transaction() as session:
        made = await ensure_assets(session, [*new, known])
        assert await ensure_assets(session, [known, *new]) == made
    assert made[known].id == 1_000
    assert {(row.name, row.uri) for row in made.values()} == {(a.name, a.uri) for a in made}
    assert len({row.id for row in made.values()}) == 31


@pytest.mark.parametrize("other", [("flights", "x-test://other"), ("other", "x-test://flights")])
async def test_one_of_many_assets_whose_name_or_uri_is_taken_is_refused(
    database: Database, other: tuple[str, str]
) -> None:
    await add_asset(database, 1_000, "flights")
    name, uri = other
    with pytest.raises(AssetConflict, match="'flights' is 'x-test://flights'"):
        async with database.transaction() as session:
            await ensure_assets(session, [Asset("x-test://new"), Asset(uri, name=name)])
    twice = [Asset("x-test://a", name="one"), Asset("x-test://b", name="one")]
    with pytest.raises(AssetConflict, match="'one' is 'x-test://a'"):
        async with database.transaction() as session:
            await ensure_assets(session, twice)


async def test_an_asset_is_found_by_name_or_by_uri(database: Database) -> None:
    await add_asset(database, 1, "flights")
    async with database.transaction() as session:
        by_name = await ensure_asset(session, name="flights")
        by_uri = await ensure_asset(session, uri="x-test://flights")
    assert by_name == by_uri
    assert by_name.id == 1


async def test_a_name_with_another_uri_is_refused(database: Database) -> None:
    await add_asset(database, 1, "flights")
    async with database.transaction() as session:
        with pytest.raises(AssetConflict, match="x-test://flights"):
            await ensure_asset(session, name="flights", uri="x-test://other")
        with pytest.raises(DagError):
            await ensure_asset(session)
