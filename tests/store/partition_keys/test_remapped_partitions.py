"""After a change of a DAG's schedule, its waiting events are mapped again. An event starts no second run for a key."""

from typing import Any

import pytest
from sqlalchemy import select

from tests.store.partitions import asset, emit_keys, keyed_runs, partitioned, waiting_shares
from tests.store.seeding import NOW, queue_of
from triggerer.domain.dag_files.merging import merge
from triggerer.domain.dag_files.parsed import ParsedAsset, ParsedDag, ParsedFile
from triggerer.partitions import (
    AllowedKeyMapper,
    FanOutMapper,
    FixedKeyMapper,
    MonthWindow,
    PartitionMapper,
    RollupMapper,
    SegmentWindow,
    StartOfMonthMapper,
)
from triggerer.scheduler import Scheduler
from triggerer.store.dags.sync import read_incumbents, sync_folder
from triggerer.store.database.transactions import Database
from triggerer.store.schema.models import Asset

DAYS = [f"2026-03-{day:02}" for day in range(1, 6)]


async def _file(database: Database, schedule: dict[str, Any], **columns: Any) -> None:
    """Store a file with the DAG `report`, as the DAG processor would."""
    dag = ParsedDag("report", "a.py:2", None, [], schedule, 16, None, {}, [], False, **columns)
    days = ParsedAsset("days", "x-test://days", "asset", {}, "a.py:1")
    nights = ParsedAsset("nights", "x-test://nights", "asset", {}, "a.py:1")
    file = ParsedFile("a.py", 0.1, dags=(dag,), assets=(days, nights))
    async with database.transaction() as session:
        folder = merge([file], await read_incumbents(session), unusable=frozenset())
        await sync_folder(session, folder, {"a.py": file}, now=NOW)


def _by(mapper: PartitionMapper) -> dict[str, Any]:
    return partitioned(asset("days"), default_partition_mapper=mapper)


@pytest.mark.rule("a range of partitions is extended by a day, and all of its partitions run again")
async def test_a_key_that_is_allowed_later_runs_alone(database: Database) -> None:
    await _file(database, _by(AllowedKeyMapper(DAYS[1:])))
    scheduler = Scheduler(database)
    await emit_keys(database, DAYS)
    assert await scheduler.run_once() == 4
    await _file(database, _by(AllowedKeyMapper(DAYS)))
    assert await scheduler.run_once() == 0
    (event,) = await emit_keys(database, DAYS[:1])
    assert await scheduler.run_once() == 1
    assert (await keyed_runs(database, "report"))[-1] == (DAYS[0], [event])


async def test_waiting_events_are_mapped_again(database: Database) -> None:
    await _file(database, _by(_all_of("eu", "us")))
    scheduler = Scheduler(database)
    events = await emit_keys(database, ["eu"])
    assert await scheduler.run_once() == 0
    assert await waiting_shares(database, "report") == [("all", events[0])]
    await _file(database, _by(_all_of("eu")))
    assert await scheduler.run_once() == 1
    assert await keyed_runs(database, "report") == [("all", events)]


def _all_of(*segments: str) -> RollupMapper:
    return RollupMapper(upstream_mapper=FixedKeyMapper("all"), window=SegmentWindow(segments))


async def test_only_keys_without_a_run_go_on_waiting_for_an_event_of_several_keys(
    database: Database,
) -> None:
    days = FanOutMapper(
        upstream_mapper=StartOfMonthMapper(input_format="%Y-%m"), window=MonthWindow()
    )
    await _file(database, _by(days), min_run_gap=3_600.0)
    scheduler = Scheduler(database)
    (event,) = await emit_keys(database, ["2026-02"])
    assert await scheduler.run_once() == 1
    await _file(database, _by(days), quiet_period=0.001)
    assert await scheduler.run_once() == 15
    runs = await keyed_runs(database, "report")
    assert runs == [(f"2026-02-{day:02}", [event]) for day in range(1, 17)]
    assert len(await waiting_shares(database, "report")) == 12


async def test_a_dag_that_is_no_longer_partitioned_takes_its_waiting_events_in_a_plain_run(
    database: Database,
) -> None:
    await _file(database, _by(_all_of("eu", "us")))
    scheduler = Scheduler(database)
    events = await emit_keys(database, ["eu"])
    assert await scheduler.run_once() == 0
    await _file(database, {"asset": {"name": "days", "uri": "x-test://days"}})
    assert await scheduler.run_once() == 1
    assert await waiting_shares(database, "report") == []
    assert [one for one, pk in await queue_of(database, "report") if pk] == events


async def test_events_of_an_asset_that_left_the_expression_wait_in_the_queue(
    database: Database,
) -> None:
    both = partitioned([asset("days"), asset("nights")])
    await _file(database, both)
    scheduler = Scheduler(database)
    days = await emit_keys(database, ["eu"])
    async with database.reading() as session:
        nights_id = await session.scalar(select(Asset.id).where(Asset.name == "nights"))
    assert nights_id is not None
    nights = await emit_keys(database, ["us"], asset_id=nights_id)
    assert await scheduler.run_once() == 0
    await _file(database, partitioned(asset("days")))
    assert await scheduler.run_once() == 1
    assert await keyed_runs(database, "report") == [("eu", days)]
    assert await waiting_shares(database, "report") == []
    await _file(database, both)
    assert await scheduler.run_once() == 0
    assert await waiting_shares(database, "report") == [("us", nights[0])]
