"""A plan shows what the scheduler would do with the waiting events under other DAG files, even if many events wait."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import cast

import pytest
from sqlalchemy import insert, select, text
from sqlalchemy.ext.asyncio import AsyncSession

from tests.store.explaining import working
from tests.store.partitions import asset, emit_keys, partitioned
from tests.store.plans.test_plan import HEADER
from tests.store.scheduling import end
from tests.store.seeding import NOW, add_alias, add_asset, add_dag, asset_json, emit, runs_of
from triggerer.dag_processing import parse_once
from triggerer.operations.planning import plan as module
from triggerer.operations.planning.plan import DagPlan, plan_folder
from triggerer.partitions import FanOutMapper, QuarterWindow, StartOfQuarterMapper
from triggerer.scheduler import Scheduler
from triggerer.store.database.transactions import Database
from triggerer.store.schema.models import AssetAliasMember, AssetEvent, QueuedAssetEvent

HOUR = timedelta(hours=1)
KEYED = "from triggerer.timetables import PartitionedAssetTimetable\n"


class OneSession:
    """A database whose readers all share one session, so that the session's work can be counted."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncSession]:
        yield self._session


async def _plan(database: Database, folder: Path, text: str) -> DagPlan:
    """Write this definition of the DAG `d` into the folder, and return the DAG's plan."""
    (folder / "d.py").write_text(HEADER + "from datetime import timedelta\n" + KEYED + text)
    parsed = await parse_once(folder)
    assert not parsed.errors
    (found,) = (await plan_folder(database, parsed, dag="d")).dags
    assert found.error is None
    return found


async def _one_asset(database: Database, **columns: object) -> None:
    await add_asset(database, 1, "a")
    await add_dag(database, "d", asset_json("a"), assets=[1], **columns)


async def test_a_quiet_period_that_is_new_counts_from_the_newest_event(
    database: Database, tmp_path: Path
) -> None:
    await _one_asset(database, max_active_runs=1)
    await emit(database, 1)
    await Scheduler(database).run_once()
    await emit(database, 1)
    await end(database, *await runs_of(database, "d"))
    file = 'with DAG("d", schedule=a, max_active_runs=1{}): pass\n'
    assert (await _plan(database, tmp_path, file.format(""))).due_after == 1
    quiet = await _plan(database, tmp_path, file.format(", quiet_period=timedelta(hours=1)"))
    assert (quiet.due_before, quiet.due_after) == (1, 0)
    assert "once no event has arrived for 1:00:00" in quiet.holds_after[0]


async def test_a_dag_that_is_to_depend_on_its_past_waits_for_the_run_that_failed(
    database: Database, tmp_path: Path
) -> None:
    await _one_asset(database)
    await emit(database, 1)
    await Scheduler(database).run_once()
    await emit(database, 1)
    found = await _plan(database, tmp_path, 'with DAG("d", schedule=a, depends_on_past=True): pass')
    assert (found.due_before, found.due_after) == (1, 0)


async def test_waiting_events_of_an_asset_that_left_count_once_it_comes_back(
    database: Database, tmp_path: Path
) -> None:
    await _one_asset(database)
    await add_asset(database, 2, "b")
    await add_dag(database, "other", asset_json("b"), assets=[2])
    (event,) = await emit(database, 2)
    async with database.transaction() as session:
        session.add(QueuedAssetEvent(dag_id="d", asset_event_id=event, asset_id=2))
    found = await _plan(database, tmp_path, 'with DAG("d", schedule=a | b): pass\n')
    assert (found.queued, found.due_before, found.due_after, found.dropped) == (1, 0, 1, 0)
    found = await _plan(database, tmp_path, 'with DAG("d", schedule=a): pass\n')
    assert (found.queued, found.due_after, found.dropped) == (1, 0, 1)


async def test_waiting_events_count_for_a_new_alias(database: Database, tmp_path: Path) -> None:
    await add_asset(database, 1, "a")
    await add_asset(database, 2, "b")
    both = {"all": [asset_json("a"), asset_json("b")]}
    await add_dag(database, "d", both, assets=[1, 2])
    await add_alias(database, 1, "found")
    async with database.transaction() as session:
        session.add(AssetAliasMember(alias_id=1, asset_id=1))
    await emit(database, 1)
    file = 'from triggerer import AssetAlias\nwith DAG("d", schedule=AssetAlias("found")): pass\n'
    found = await _plan(database, tmp_path, file)
    assert (found.due_before, found.due_after, found.dropped) == (0, 1, 0)


FANNED_OUT = """
from triggerer.partitions import FanOutMapper, QuarterWindow, StartOfQuarterMapper
quarters = StartOfQuarterMapper(input_format="%Y-Q{quarter}")
months = FanOutMapper(upstream_mapper=quarters, window=QuarterWindow())
schedule = PartitionedAssetTimetable(assets=a | b, default_partition_mapper=months)
with DAG("d", schedule=schedule): pass
"""


async def test_a_key_whose_run_took_an_event_is_not_due_for_it_again(
    database: Database, tmp_path: Path
) -> None:
    await add_asset(database, 1, "a")
    quarters = StartOfQuarterMapper(input_format="%Y-Q{quarter}")
    months = FanOutMapper(upstream_mapper=quarters, window=QuarterWindow())
    schedule = partitioned(asset("a"), default_partition_mapper=months)
    await add_dag(database, "d", schedule, assets=[1], max_active_runs=1)
    await emit_keys(database, ["2026-Q1"])
    await Scheduler(database).run_once()
    await end(database, *await runs_of(database, "d"))
    found = await _plan(database, tmp_path, FANNED_OUT)
    assert (found.change, found.queued, found.due_before) == (module.Change.CHANGED, 1, 1)
    assert found.due_after == 2
    await Scheduler(database).run_once()
    await end(database, *await runs_of(database, "d"))
    assert (await _plan(database, tmp_path, FANNED_OUT)).due_after == 1


async def _move(database: Database, by: timedelta) -> None:
    """Add `by` to the times of all events, as if the clock had been set back after they were stored."""
    async with database.transaction() as session:
        for event in await session.scalars(select(AssetEvent)):
            event.timestamp += by


@pytest.mark.parametrize(
    "schedule", ["a", "PartitionedAssetTimetable(assets=a)"], ids=["plain", "keyed"]
)
async def test_a_clock_that_was_set_back_holds_no_run_of_the_history(
    database: Database, tmp_path: Path, schedule: str
) -> None:
    await _one_asset(database, is_paused=True)
    for key in ("x", "x", "y"):
        await emit_keys(database, [key])
    await _move(database, 5 * HOUR)
    await emit_keys(database, ["y"])
    file = f'with DAG("d", schedule={schedule}, quiet_period=timedelta(minutes=30)): pass\n'
    found = await _plan(database, tmp_path, file)
    assert found.after is not None
    # Events 1 to 3 seem to come from the future, but their quiet period is over. Event 4 is still in its quiet period.
    taken = [run.asset_event_ids for run in found.after.runs]
    assert taken == ([(1, 2, 3)] if schedule == "a" else [(1, 2), (3,)])
    assert found.after.waiting == (4,)
    assert max(run.at for run in found.after.runs) <= await _newest(database)


async def _newest(database: Database) -> datetime:
    async with database.reading() as session:
        at = await session.scalar(select(AssetEvent.timestamp).order_by(AssetEvent.id.desc()))
    assert at is not None
    return at


async def test_the_cost_of_a_plan_does_not_grow_with_waiting_events(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from triggerer.operations.planning import present_dags

    monkeypatch.setattr(present_dags, "_MOST_EVENTS", 100)
    await _one_asset(database)
    await add_dag(database, "keyed", partitioned(asset("a")), assets=[1])
    await _much(database, 20_000)
    (tmp_path / "d.py").write_text(
        HEADER
        + KEYED
        + 'with DAG("d", schedule=a, events_per_run=1, max_active_runs=200): pass\n'
        + 'with DAG("keyed", schedule=PartitionedAssetTimetable(assets=a | b)): pass\n'
    )
    parsed = await parse_once(tmp_path)
    async with database.reading() as session, working(await session.connection()) as work:
        planned = await plan_folder(cast("Database", OneSession(session)), parsed, events=1)
        found = {one.dag_id: one for one in planned.dags}
    plain, keyed = found["d"], found["keyed"]
    assert (plain.queued, plain.is_counted_short, plain.due_after) == (100, True, 100)
    assert (keyed.queued, keyed.is_counted_short, keyed.change) == (
        100,
        True,
        module.Change.CHANGED,
    )
    assert work.done < 10_000


async def _much(database: Database, number: int) -> None:
    rows = [
        {"asset_id": 1, "extra": {}, "timestamp": NOW, "watcher_id": 0, "ordinal": 0,
         "idempotency_key": f"much-{n}", "partition_key": str(n)}
        for n in range(number)
    ]  # fmt: skip
    async with database.transaction() as session:
        await session.execute(insert(AssetEvent), rows)
        for dag_id, taken in (("d", "NULL"), ("keyed", "0")):
            await session.execute(
                text(
                    "INSERT INTO queued_asset_event (dag_id, asset_event_id, asset_id, run_pk) "
                    f"SELECT '{dag_id}', id, asset_id, {taken} FROM asset_event"
                )
            )
        await session.execute(
            text(
                "INSERT INTO dag_partition_event (dag_id, partition_key, asset_event_id, asset_id) "
                "SELECT 'keyed', partition_key, id, asset_id FROM asset_event"
            )
        )
        if session.get_bind().dialect.name == "postgresql":
            await session.execute(text("ANALYZE"))
