"""`assets emit` refuses an asset that nobody declares, unless the user gives `--create`."""

import pytest

from tests.actors import TESTER
from tests.store.dags.test_dag_sync import asset, file, sync
from tests.store.seeding import events_in
from triggerer.errors import DagError, KeyReused, UnknownAsset
from triggerer.operations.emitting import Emission, emit_all, emit_event
from triggerer.store.database.transactions import Database


@pytest.fixture
async def declaring(database: Database) -> Database:
    """A store with the assets `orders` and `weather`, which a file declares."""
    await sync(database, file(assets=(asset("orders", "s3://b/orders"), asset("weather"))))
    return database


@pytest.mark.parametrize("given", ["orders", "s3://b/orders"])
async def test_a_declared_asset_is_found_by_its_name_and_by_its_uri(
    declaring: Database, given: str
) -> None:
    async with declaring.transaction() as session:
        event = await emit_event(session, TESTER, given, {"n": 1})
    assert (event["asset_name"], event["asset_uri"]) == ("orders", "s3://b/orders")


@pytest.mark.parametrize(
    ("given", "meant"),
    [("ordres", "'orders'"), ("s3://b/order", "'s3://b/orders'"), ("zzz", None)],
)
async def test_an_asset_that_nobody_declares_is_refused_with_the_nearest_declared_one(
    declaring: Database, given: str, meant: str | None
) -> None:
    with pytest.raises(UnknownAsset) as raised:
        async with declaring.transaction() as session:
            await emit_event(session, TESTER, given, {})
    said = f"no DAG file declares the asset {given!r}"
    assert raised.value.message == (said if meant is None else f"{said}; did you mean {meant}?")
    assert "--create" in str(raised.value.hint)
    assert await events_in(declaring) == []


async def test_an_asset_whose_file_has_gone_is_refused_too(declaring: Database) -> None:
    await sync(declaring, file("b.py", assets=(asset("weather", file="b.py"),)))
    async with declaring.transaction() as session:
        await emit_event(session, TESTER, "weather", {})
        with pytest.raises(UnknownAsset):
            await emit_event(session, TESTER, "orders", {})
        # The asset has a row, and the event gets the row's URI.
        event = await emit_event(session, TESTER, "orders", {}, create=True)
    assert event["asset_uri"] == "s3://b/orders"


async def test_create_takes_an_asset_that_nobody_declares_but_no_invalid_uri(
    declaring: Database,
) -> None:
    async with declaring.transaction() as session:
        event = await emit_event(session, TESTER, "x-new:1", {}, create=True)
        with pytest.raises(DagError, match="ASCII"):
            await emit_event(session, TESTER, "sché", {}, create=True)
    assert (event["asset_name"], event["asset_uri"]) == ("x-new:1", "x-new:1")


async def test_many_events_are_recorded_in_order_and_repeats_are_found(declaring: Database) -> None:
    async def emit(*emissions: Emission) -> list[tuple[int, bool]]:
        async with declaring.transaction() as session:
            recorded = await emit_all(session, TESTER, "orders", emissions)
        for emission, (event, _) in zip(emissions, recorded, strict=True):
            assert (event.extra, event.idempotency_key) == (emission.extra, emission.key)
        return [(event.id, is_new) for event, is_new in recorded]

    plain, a, b, c = Emission({"n": 0}), *(Emission({"key": key}, key) for key in "abc")
    assert await emit() == []
    ((stored, _),) = await emit(b)
    outcomes = await emit(plain, a, b, plain, a, c)
    assert [is_new for _, is_new in outcomes] == [True, True, False, True, False, True]
    ids = [event_id for event_id, _ in outcomes]
    assert ids[2] == stored
    assert ids[4] == ids[1]
    assert stored < ids[0] < ids[1] < ids[3] < ids[5]
    with pytest.raises(KeyReused):
        await emit(Emission({}, "d"), Emission({"key": "other"}, "a"))
    assert len(await events_in(declaring)) == 5
