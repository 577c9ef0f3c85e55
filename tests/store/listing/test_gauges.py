"""Gauges show the state of the database, and counters agree with its rows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncSession

from tests.actors import TESTER
from tests.store.listing.test_pages import filled  # noqa: F401 (a fixture)
from tests.store.seeding import (
    FENCE,
    Event,
    add_asset,
    add_dag,
    add_stream,
    count_events,
    record,
    recording,
)
from triggerer.domain.watchers.parked import ParkedBounds
from triggerer.errors import MoveRefused
from triggerer.observability.metrics import table
from triggerer.operations.cleaning import Limits, clean
from triggerer.operations.cleaning import events as cleaning
from triggerer.operations.emitting import emit_event
from triggerer.store.database.transactions import Database, database_now
from triggerer.store.events.emit import NewAssetEvent, record_events
from triggerer.store.listing.gauges import read_gauges
from triggerer.store.schema.models import ParkedMessage, Stream, Watcher
from triggerer.store.streams.leases import register_instance


@pytest.fixture(autouse=True)
def _nothing_counted() -> Iterator[None]:
    yield
    for counter in table.COUNTERS:
        counter.clear()


async def gauges(database: Database) -> dict[tuple[str, ...], float]:
    bounds = ParkedBounds(max_messages=10, max_bytes=100, total_bytes=12)
    async with database.reading() as session:
        samples = await read_gauges(session, bounds)
    found = {
        (one.metric.name.removeprefix("triggerer_"), *one.labels): one.value for one in samples
    }
    assert len(found) == len(samples)
    return found


async def test_gauges_show_watchers_parked_messages_runs_dags_and_instances(
    filled: Database,  # noqa: F811
) -> None:
    async with filled.transaction() as session:
        now = await database_now(session)
        await session.execute(
            update(Stream).values(owner=FENCE.owner, expires_at=now + timedelta(minutes=1))
        )
        since = now - timedelta(minutes=5)
        failing = update(Watcher).where(Watcher.id == 1).values(state="failing", updated_at=since)
        await session.execute(failing)
        kept = update(ParkedMessage).where(ParkedMessage.id == 2).values(state="kept")
        await session.execute(kept)
        await register_instance(session, "elsewhere:1:a", kind="scheduler")
    found = await gauges(filled)
    assert found["watchers", "failing"] == 1
    assert found["watchers", "waiting"] == 5
    assert found["streams_unowned",] == 0
    assert found["watcher_failing_since_seconds", "B", "a"] >= 300
    assert found["watcher_behind_messages", "a_b", "B"] == 1
    assert (found["parked_messages", "set_aside"], found["parked_messages", "kept"]) == (5, 1)
    assert found["parked_bytes",] == 6
    # Half of the bytes that may be parked.
    assert found["parked_bound_ratio",] == 0.5
    assert (found["runs_active", "queued"], found["dags", "active"]) == (0, 6)
    assert (found["instances", "scheduler"], found["instances", "executor"]) == (1, 0)
    assert found["retention_oldest_event_seconds",] > 0
    assert abs(found["clock_skew_seconds",]) < 60


async def test_the_age_of_the_last_cleaning_counts_only_those_that_ended(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add_stream(database)
    await add_asset(database, 1, "orders")
    async with database.transaction() as session:
        old = await database_now(session) - timedelta(days=3)
        await record_events(session, [NewAssetEvent(1, timestamp=old) for _ in range(3)])
    limits = Limits().with_events_and_runs(old + timedelta(days=1))
    long = timedelta(seconds=1)
    assert (await gauges(database))["clean_age_seconds",] > 250_000
    with monkeypatch.context() as patched:
        patched.setattr(cleaning, "highest_event", _fail)
        with pytest.raises(MoveRefused):
            await clean(database, TESTER, limits, ack_timeout=long)
    await clean(database, TESTER, limits, ack_timeout=long, dry_run=True)
    found = await gauges(database)
    assert found["clean_age_seconds",] > 250_000
    assert found["cleaned_rows_total", "asset_events"] == 0
    for _ in range(2):
        await clean(database, TESTER, limits, ack_timeout=long)
    found = await gauges(database)
    assert found["clean_age_seconds",] < 60
    # The newest event of the asset stays.
    assert found["cleaned_rows_total", "asset_events"] == 2
    assert found["cleaned_rows_total", "runs"] == 0


async def _fail(session: AsyncSession) -> int:
    raise MoveRefused("as if the database went away")


async def test_gauges_of_an_empty_database_are_zeros(database: Database) -> None:
    found = await gauges(database)
    found.pop(("clock_skew_seconds",))
    assert set(found.values()) == {0}


def recorded(source: str) -> float:
    return table.EVENTS_RECORDED.values().get((source,), 0)


async def test_the_counter_of_events_agrees_with_the_rows_whatever_comes_again(
    database: Database,
) -> None:
    await add_stream(database)
    await add_asset(database, 1, "flights")
    refused = table.EVENTS_REFUSED.values()[()]

    def events() -> list[Event]:
        return [Event({"n": n}, f"k{n}") for n in range(60)]

    async with recording(database, max_batch_rows=25) as recorder:
        await record(recorder, *events())
        await record(recorder, *events()[:30], Event({}, "new"), Event({"n": "\0"}, "bad"))
        await record(recorder, Event({}, "alone"))
        await record(recorder, Event({}, "alone"))
    assert await count_events(database) == 62
    assert recorded("watcher") == 62
    assert table.EVENTS_REFUSED.values()[()] == refused + 1


async def test_the_latency_of_an_event_counts_from_the_publication_of_its_message(
    database: Database,
) -> None:
    await add_stream(database)
    await add_asset(database, 1, "flights")
    table.EVENT_LATENCY.clear()
    hour_ago = datetime.now(UTC) - timedelta(hours=1)
    async with recording(database) as recorder:
        await record(recorder, Event({}, "a", published_at=hour_ago))
        await record(recorder, Event({}, "b"))
    ((_, latencies),) = table.EVENT_LATENCY.series()
    table.EVENT_LATENCY.clear()
    counts, total = latencies.read()
    assert counts[-1] == ("+Inf", 2)
    assert 3_600 <= total < 3_700


async def test_an_event_by_request_counts_once_its_transaction_has_committed(
    database: Database,
) -> None:
    await add_dag(database, "d", None)
    before = recorded("request")

    async def emit(*, fails: bool) -> None:
        async with database.transaction() as session:
            await emit_event(session, TESTER, "x-test:a", {}, create=True)
            assert recorded("request") == before
            if fails:
                raise MoveRefused("later in the same transaction")

    with pytest.raises(MoveRefused):
        await emit(fails=True)
    assert recorded("request") == before
    await emit(fails=False)
    assert recorded("request") == before + 1
