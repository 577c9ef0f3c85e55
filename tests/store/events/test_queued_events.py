"""An operator lists and deletes the events that wait for DAGs."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.actors import TESTER
from tests.store.seeding import add_asset, add_dag, asset_json, emit, queue_of, runs_of
from triggerer.domain.timetables import CronDataIntervalTimetable, timetable_to_json
from triggerer.errors import DagError, UnknownDag
from triggerer.operations.queued_events import delete_queued_events, list_queued_events
from triggerer.operations.triggering import trigger_dag
from triggerer.scheduler.loop import Scheduler
from triggerer.store.database.transactions import Database


async def _seed(database: Database) -> None:
    """Add the DAG `both` on `a` and `b`, the DAG `paused` on `a`, and two events of `a`."""
    await add_asset(database, 1, "a")
    await add_asset(database, 2, "b")
    both = {"all": [asset_json("a"), asset_json("b")]}
    await add_dag(database, "both", both, assets=[1, 2])
    await add_dag(database, "paused", asset_json("a"), assets=[1], is_paused=True)
    await emit(database, 1, 2)


async def _waiting(database: Database, **filters: str | int) -> list[tuple[str, int]]:
    async with database.reading() as session:
        found = await list_queued_events(session, **filters)  # type: ignore[arg-type]
    return [(row.dag_id, row.asset_event_id) for row in found]


async def test_waiting_events_are_listed_by_dag_oldest_first(database: Database) -> None:
    await _seed(database)
    everything = [("both", 1), ("both", 2), ("paused", 1), ("paused", 2)]
    assert await _waiting(database) == everything
    assert await _waiting(database, limit=3) == everything[:3]
    assert await _waiting(database, dag="paused") == everything[2:]
    assert await _waiting(database, asset="x-test://a") == everything
    assert await _waiting(database, asset="b") == []
    assert await _waiting(database, state="paused") == everything[2:]
    assert await _waiting(database, state="active", limit=1) == everything[:1]
    assert await _waiting(database, state="stale") == []
    async with database.reading() as session:
        first = (await list_queued_events(session, limit=1))[0]
    assert (first.asset_name, first.asset_uri, first.partition_key) == ("a", "x-test://a", None)
    assert first.queued_at.tzinfo is not None


async def test_an_event_that_a_run_took_does_not_wait(database: Database) -> None:
    await _seed(database)
    await emit(database, 2, 1)
    await Scheduler(database).run_once()
    assert await _waiting(database) == [("paused", 1), ("paused", 2)]


async def test_deleted_events_are_in_no_run_and_the_others_are(database: Database) -> None:
    await _seed(database)
    async with database.transaction() as session:
        assert await delete_queued_events(session, TESTER, dag="both", asset="a") == 2
        assert await delete_queued_events(session, TESTER, dag="both") == 0
    assert await _waiting(database) == [("paused", 1), ("paused", 2)]
    await emit(database, 2, 1)
    await Scheduler(database).run_once()
    # `b` alone does not make `a & b` true.
    assert await runs_of(database, "both") == []
    await emit(database, 1, 1)
    await Scheduler(database).run_once()
    (run,) = await runs_of(database, "both")
    assert await queue_of(database, "both") == [(3, run.id), (4, run.id)]


async def test_a_run_keeps_the_events_that_it_has(database: Database) -> None:
    await _seed(database)
    await emit(database, 2, 1)
    await Scheduler(database).run_once()
    async with database.transaction() as session:
        assert await delete_queued_events(session, TESTER, dag="both") == 0
        assert await delete_queued_events(session, TESTER, asset="a") == 2
    assert len(await queue_of(database, "both")) == 3
    assert await queue_of(database, "paused") == []


async def test_deleting_asks_for_a_dag_or_an_asset_that_there_is(database: Database) -> None:
    await _seed(database)
    async with database.transaction() as session:
        with pytest.raises(UnknownDag):
            await delete_queued_events(session, TESTER, dag="nobody")
        with pytest.raises(DagError, match="no asset 'nothing'"):
            await delete_queued_events(session, TESTER, asset="nothing")
        with pytest.raises(DagError, match="neither a DAG nor an asset"):
            await delete_queued_events(session, TESTER)


async def test_a_manual_run_may_have_a_logical_date(database: Database) -> None:
    await add_dag(database, "d", None, params={"a": 1, "b": 1})
    at = datetime(2026, 1, 2, tzinfo=UTC)
    async with database.transaction() as session:
        await trigger_dag(session, TESTER, "d", params={"b": 2}, logical_date=at)
        await trigger_dag(session, TESTER, "d", run_id="plain")
    dated, plain = await runs_of(database, "d")
    assert (dated.logical_date, dated.data_interval_start, dated.data_interval_end) == (at, at, at)
    assert dated.params == {"a": 1, "b": 2}
    assert dated.run_id == f"manual__{dated.run_after.isoformat(timespec='microseconds')}"
    assert (plain.run_id, plain.logical_date) == ("plain", None)


async def test_the_timetable_infers_the_data_interval_of_a_manual_run(database: Database) -> None:
    daily = timetable_to_json(CronDataIntervalTimetable("@daily", timezone="UTC"))
    await add_dag(database, "d", {"timetable": daily})
    async with database.transaction() as session:
        await trigger_dag(session, TESTER, "d", logical_date=datetime(2026, 1, 2, 7, tzinfo=UTC))
    (run,) = await runs_of(database, "d")
    assert run.logical_date == datetime(2026, 1, 2, 7, tzinfo=UTC)
    assert run.data_interval_start == datetime(2026, 1, 1, tzinfo=UTC)
    assert run.data_interval_end == datetime(2026, 1, 2, tzinfo=UTC)
