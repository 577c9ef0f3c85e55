"""What `triggerer db clean` deletes and what it keeps, by the clock of each database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from sqlalchemy import func, select, update

from tests.actors import TESTER
from tests.store.cleaning import AGES, DAY, age, by_hand, cleaned, count, events, run_once
from tests.store.partitions import HOURS, daily, emit_keys
from tests.store.scheduling import end, now_of, one_asset, renewed, set_columns, timed
from tests.store.seeding import NOW, add_asset, add_dag, asset_json, emit, queue_of, runs_of
from triggerer.domain.run_logs import log_path
from triggerer.domain.runs import RunState
from triggerer.domain.schedules import OnEither, OnTime, condition_from_json
from triggerer.domain.timetables import CronDataIntervalTimetable
from triggerer.errors import TriggererError
from triggerer.operations.backfills import start_backfill
from triggerer.operations.cleaning import events as cleaning_events
from triggerer.operations.cleaning import runs as cleaning_runs
from triggerer.operations.runs import clear_run
from triggerer.scheduler import Scheduler
from triggerer.scheduler.backfills import BackfillRunner
from triggerer.store.database.transactions import Database
from triggerer.store.events.emit import NewAssetEvent, record_events
from triggerer.store.schema.models import (
    AssetEvent,
    Backfill,
    BackfillInterval,
    DagPartition,
    DagPartitionEvent,
    DagRun,
    QueuedAssetEvent,
    TaskRun,
)


async def two_old_runs(database: Database) -> list[DagRun]:
    """Two runs of the DAG `report`, with an event each."""
    await one_asset(database)
    for _ in range(2):
        await emit(database, 1)
        await run_once(database)
    await age(database)
    return await runs_of(database, "report")


# Events that wait


async def test_cleaning_keeps_old_events_that_are_still_queued(database: Database) -> None:
    """For the same fault in Airflow, see apache/airflow#70972."""
    await one_asset(database, is_paused=True)
    await add_dag(database, "other", asset_json("flights"), assets=[1])
    await emit(database, 1, 3)
    await run_once(database)
    await age(database)
    await emit(database, 1)
    await run_once(database)
    assert len(await runs_of(database, "other")) == 2

    found = await cleaned(database)

    assert (found.runs, found.asset_events, found.kept_events) == (1, 0, {"queued": 3})
    await set_columns(database, "report", is_paused=False)
    await run_once(database)
    (run,) = await runs_of(database, "report")
    assert await queue_of(database, "report") == [(event, run.id) for event in (1, 2, 3, 4)]
    assert await events(database) == [1, 2, 3, 4]


async def test_events_go_with_the_last_run_that_has_them(database: Database) -> None:
    await one_asset(database)
    await add_dag(database, "other", asset_json("flights"), assets=[1])
    await emit(database, 1, 2)
    await run_once(database)
    await age(database)
    (of_other,) = await runs_of(database, "other")
    async with database.transaction() as session:
        await session.execute(
            update(DagRun).where(DagRun.id == of_other.id).values(ended_at=await now_of(database))
        )
    for _ in range(2):
        await emit(database, 1)
        await run_once(database)

    assert (await cleaned(database)).kept_events == {"in_run": 2}
    assert [event for event, _ in await queue_of(database, "report")] == [3, 4]
    assert await events(database) == [1, 2, 3, 4]

    await age(database)
    assert (await cleaned(database)).asset_events == 3
    # The event of the newest run stays. It is also the newest event of its asset.
    assert await events(database) == [4]


async def test_the_newest_event_of_each_asset_stays(database: Database) -> None:
    await add_asset(database, 1, "a")
    await add_asset(database, 2, "b")
    await emit(database, 1, 3)
    await emit(database, 2, 2)
    await age(database)
    found = await cleaned(database)
    assert (found.asset_events, found.kept_events) == (3, {"newest": 2})
    assert await events(database) == [3, 5]


async def test_many_events_go_in_small_steps(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleaning_events, "_EVENTS", 3)
    await add_asset(database, 1, "a")
    await emit(database, 1, 10)
    await age(database)
    await emit(database, 1, 10)
    found = await cleaned(database, dry_run=True)
    assert found.asset_events == 10
    assert (await cleaned(database)).asset_events == 10
    assert await events(database) == list(range(11, 21))


async def test_cleaning_ends_after_the_last_old_event(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleaning_events, "_EVENTS", 1)
    monkeypatch.setattr(cleaning_events, "_WINDOWS_BEYOND", 3)
    await add_asset(database, 1, "a")
    old = await now_of(database) - AGES
    # `None` stands for an event with the current time. The search ends after three such events in a row, so it finds
    # the second old event, but not the third.
    times = [old, None, None, old, None, None, None, old, None]
    async with database.transaction() as session:
        await record_events(session, [NewAssetEvent(1, timestamp=at) for at in times])
    assert (await cleaned(database)).asset_events == 2


# Partitions


async def test_an_event_that_waits_for_a_partition_key_stays(database: Database) -> None:
    await daily(database)
    await emit_keys(database, HOURS[:23])
    await run_once(database)
    await age(database)
    await emit_keys(database, ["2026-03-11T00"])
    assert (await cleaned(database)).kept_events == {"queued": 23}
    await emit_keys(database, HOURS[23:])
    await run_once(database)
    (run,) = await runs_of(database, "daily")
    assert run.partition_key == "2026-03-10"
    async with database.reading() as session:
        taken = select(func.count()).where(DagPartitionEvent.run_pk == run.id)
        assert await session.scalar(taken) == 24


async def test_the_events_of_a_partition_key_go_with_its_run(database: Database) -> None:
    await daily(database)
    await emit_keys(database, HOURS)
    await run_once(database)
    (run,) = await runs_of(database, "daily")
    await end(database, run)
    await emit_keys(database, [hour.replace("-10T", "-11T") for hour in HOURS])
    await run_once(database)
    await age(database)

    found = await cleaned(database)

    assert (found.runs, found.kept_runs, found.asset_events) == (1, 1, 24)
    assert await count(database, DagPartitionEvent) == 24
    assert await count(database, QueuedAssetEvent) == 24
    # The row of the key stays, so a late event starts a further run of the key.
    assert await count(database, DagPartition) == 2


# Runs


async def test_ended_runs_go_with_their_tasks_entries_and_logs(
    database: Database, tmp_path: Path
) -> None:
    await one_asset(database)
    for _ in range(3):
        await emit(database, 1)
        await run_once(database)
        await end(database, *await runs_of(database, "report"))
    await age(database)
    runs = await runs_of(database, "report")
    async with database.transaction() as session:
        await session.execute(update(DagRun).values(log_home=str(tmp_path)))
        session.add_all([TaskRun(run_pk=run.id, task_id="t", state="success") for run in runs])
    logs = [Path(log_path(str(tmp_path), "report", run.run_id)) for run in runs]
    logs[0].parent.mkdir(parents=True)
    for path in (logs[0], logs[2]):
        path.write_text("…")

    assert (await cleaned(database, dry_run=True)).runs == 2
    assert all(path.exists() for path in (logs[0], logs[2]))
    found = await cleaned(database)

    assert (found.runs, found.kept_runs, found.logs, found.logs_elsewhere) == (2, 1, 1, 1)
    assert [run.id for run in await runs_of(database, "report")] == [runs[2].id]
    assert [path.exists() for path in logs] == [False, False, True]
    assert await count(database, TaskRun) == await count(database, QueuedAssetEvent) == 1


@pytest.mark.parametrize(
    "columns",
    [
        {"state": RunState.QUEUED, "ended_at": None},
        {"state": RunState.RUNNING, "ended_at": None},
        {"callback": "due"},
        {"ended_at": NOW + 10_000 * DAY},
        {"run_after": NOW + 10_000 * DAY},
    ],
)
async def test_a_run_stays_that_is_not_done_or_not_old(
    database: Database, columns: dict[str, Any]
) -> None:
    first, second = await two_old_runs(database)
    async with database.transaction() as session:
        await session.execute(update(DagRun).where(DagRun.id == first.id).values(**columns))
    assert (await cleaned(database)).runs == 0
    assert [run.id for run in await runs_of(database, "report")] == [first.id, second.id]
    assert await events(database) == [1, 2]


async def test_a_run_that_is_repeated_at_this_moment_stays(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = await two_old_runs(database)
    count_events = cleaning_runs.count_events

    async def and_repeat(session: Any, run_pks: Any) -> Any:
        counts = await count_events(session, run_pks)
        async with database.transaction() as writing:
            await clear_run(writing, TESTER, "report", first.run_id)
        return counts

    monkeypatch.setattr(cleaning_runs, "count_events", and_repeat)
    assert (await cleaned(database)).runs == 0
    assert await queue_of(database, "report") == [
        (event, run.id)
        for event, run in zip((1, 2), await runs_of(database, "report"), strict=True)
    ]


@pytest.mark.parametrize("catchup", [True, False])
async def test_a_timetable_asks_for_the_same_runs_afterwards(
    database: Database, catchup: bool
) -> None:
    start = await now_of(database) - 400 * DAY
    daily_ = OnTime(CronDataIntervalTimetable("@daily", timezone="UTC"))
    await timed(database, "d", daily_, start_date=start, catchup=catchup, max_active_runs=500)
    scheduler = Scheduler(database)
    while await scheduler.run_once():
        pass
    runs = await runs_of(database, "d")
    async with database.transaction() as session:
        await session.execute(
            update(DagRun).values(state=RunState.SUCCESS, ended_at=DagRun.run_after)
        )
    due = (await renewed(database, "d")).next_run_after

    found = await cleaned(database, days=10)

    assert found.runs == len(runs) - 11 if catchup else found.runs == 0
    assert (await renewed(database, "d")).next_run_after == due
    assert not await Scheduler(database).run_once()
    # Even if only the newest run stays, the next run is computed from it.
    await cleaned(database, days=0)
    assert (await renewed(database, "d")).next_run_after == due
    assert [run.id for run in await runs_of(database, "d")] == [runs[-1].id]
    assert not await Scheduler(database).run_once()


async def test_a_failure_holds_a_dag_that_depends_on_its_past_for_however_long(
    database: Database,
) -> None:
    await one_asset(database, depends_on_past=True)
    await emit(database, 1)
    await run_once(database)
    (run,) = await runs_of(database, "report")
    await age(database)
    async with database.transaction() as session:
        await session.execute(update(DagRun).values(state=RunState.FAILED))
    await emit(database, 1)
    assert (await cleaned(database)).kept_runs == 1
    await run_once(database)
    assert [one.id for one in await runs_of(database, "report")] == [run.id]


async def test_the_last_run_of_each_kind_stays(database: Database) -> None:
    """To decide on the next run, the scheduler needs the last timed run and the last event-driven run."""
    await add_asset(database, 1, "flights")
    either = OnEither(
        CronDataIntervalTimetable("@yearly", timezone="UTC"),
        condition_from_json(asset_json("flights")),
    )
    await timed(database, "d", either, assets=(1,))
    await run_once(database)
    await emit(database, 1)
    await run_once(database)
    await by_hand(database)
    kinds = [run.run_type for run in await runs_of(database, "d")]
    assert kinds == ["scheduled", "asset_triggered", "manual"]
    await age(database)
    found = await cleaned(database)
    assert (found.runs, found.kept_runs) == (0, 3)


async def test_a_backfill_goes_with_its_last_run_once_it_is_done(database: Database) -> None:
    start = await now_of(database) - 60 * DAY
    await timed(database, "d", OnTime(CronDataIntervalTimetable("@daily", timezone="UTC")))
    await run_once(database)
    async with database.transaction() as session:
        await start_backfill(session, TESTER, "d", start, start + 3 * DAY, max_active=2)
    await BackfillRunner(database).run_once()
    await age(database)
    async with database.transaction() as session:
        await session.execute(update(Backfill).values(created_at=await now_of(database) - AGES))

    assert (await cleaned(database)).runs == 0
    await BackfillRunner(database).run_once()
    await age(database)
    # Now the backfill has room for its last run.
    await BackfillRunner(database).run_once()
    await age(database)
    # The backfill stays, because its last run is the newest run of the DAG.
    assert (await cleaned(database)).backfills == 0
    await by_hand(database)

    would = await cleaned(database, dry_run=True)
    found = await cleaned(database)

    assert (found.backfills, would.backfills) == (1, 1)
    assert await count(database, Backfill) == await count(database, BackfillInterval) == 0
    assert [run.run_type for run in await runs_of(database, "d")] == ["scheduled", "manual"]


# Events of tasks


async def test_events_that_a_run_emitted_stay_as_long_as_the_run(database: Database) -> None:
    await one_asset(database)
    await add_asset(database, 2, "out")
    await emit(database, 1)
    await run_once(database)
    (run,) = await runs_of(database, "report")
    source = {"source_dag_id": "report", "source_run_id": run.run_id, "source_task_id": "t"}
    async with database.transaction() as session:
        await record_events(session, [NewAssetEvent(2, **source) for _ in range(2)])
    await age(database)
    # The run stays, because it is the newest run of its DAG.
    assert (await cleaned(database)).kept_events == {"in_run": 1, "emitted_by_run": 2}
    await emit(database, 1)
    await run_once(database)
    assert (await cleaned(database)).asset_events == 2


# The whole


async def test_a_dry_run_counts_and_deletes_nothing(database: Database) -> None:
    await one_asset(database)
    await add_asset(database, 2, "out")
    for _ in range(4):
        await emit(database, 1)
        await run_once(database)
        (*_, run) = await runs_of(database, "report")
        source = {"source_dag_id": "report", "source_run_id": run.run_id, "source_task_id": "t"}
        async with database.transaction() as session:
            await record_events(session, [NewAssetEvent(2, **source)])
    await age(database)
    would = await cleaned(database, dry_run=True)
    assert (await count(database, AssetEvent), await count(database, DagRun)) == (8, 4)
    found = await cleaned(database)
    assert (found.runs, found.asset_events) == (would.runs, would.asset_events) == (3, 6)
    assert found.kept_events == would.kept_events
    assert (await cleaned(database)).asset_events == 0


async def test_an_instant_that_is_still_to_come_is_refused(database: Database) -> None:
    with pytest.raises(TriggererError, match="still to come"):
        await cleaned(database, days=-1)


async def test_it_cleans_beside_a_scheduler_and_nothing_is_lost_or_twice(
    database: Database,
) -> None:
    """Until an event is deleted, each DAG has it in exactly one run or in its queue."""
    await one_asset(database, events_per_run=3, max_active_runs=1000)
    await add_dag(database, "other", asset_json("flights"), assets=[1], is_paused=True)
    seen: dict[int, int] = {}
    done = anyio.Event()

    async def keep_cleaning() -> None:
        while not done.is_set():
            await age(database)
            await cleaned(database, days=0)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(keep_cleaning)
        for _ in range(15):
            await emit(database, 1, 4)
            await run_once(database)
            for event, run in await queue_of(database, "report"):
                assert run is None or seen.setdefault(event, run) == run
        done.set()
    await set_columns(database, "other", is_paused=False)
    while await Scheduler(database).run_once():
        pass
    assert sorted(seen) == list(range(1, 61))
    assert [event for event, _ in await queue_of(database, "other")] == list(range(1, 61))
