"""`triggerer db clean` keeps the rows without which events would run twice or be missed, and deletes the others."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from sqlalchemy import insert, select, text, update

from tests.actors import TESTER
from tests.run_orders import order
from tests.store.cleaning import AGES, age, cleaned, count, run_once
from tests.store.explaining import working
from tests.store.partitions import daily, days_of_months, emit_keys, keyed_runs
from tests.store.scheduling import now_of, one_asset, set_columns, timed
from tests.store.seeding import FENCE, NOW, add_asset, add_dag, add_stream, emit, events_in, runs_of
from triggerer.domain.attempts import EmittedEvent, TaskResult
from triggerer.domain.run_logs import log_path
from triggerer.domain.runs import TaskState
from triggerer.domain.schedules import OnTime
from triggerer.domain.timetables import CronDataIntervalTimetable
from triggerer.errors import TriggererError
from triggerer.executor.emissions import record_emitted
from triggerer.operations.cleaning import runs as cleaning
from triggerer.operations.key_backfills import start_key_backfill
from triggerer.scheduler import Scheduler
from triggerer.store.audit.cleanings import read_cleaned
from triggerer.store.database.script import perform, single_step
from triggerer.store.database.transactions import Database
from triggerer.store.events.cleaning import delete_events
from triggerer.store.partitions.keys import DIVIDED
from triggerer.store.partitions.remapping import return_to_queue
from triggerer.store.runs.cleaning import SHARED
from triggerer.store.runs.creation.create_run import create_manual_run
from triggerer.store.runs.results import AttemptUpdate
from triggerer.store.schema.models import (
    Backfill,
    BackfillKey,
    DagPartitionEvent,
    DagRun,
    QueuedAssetEvent,
    Trigger,
    Watcher,
)
from triggerer.store.watchers.hosting import WatcherState, write_states


async def test_a_key_does_not_run_again_since_the_event_waits_for_another_one(
    database: Database,
) -> None:
    await days_of_months(database, "days", max_active_runs=10)
    (event,) = await emit_keys(database, ["2026-02"])
    await run_once(database)
    assert len(await runs_of(database, "days")) == 10
    await age(database)

    would = await cleaned(database, dry_run=True)
    found = await cleaned(database)
    assert (found.runs, would.runs) == (0, 0)
    assert found.kept_runs == 10

    # Return the waiting event to the queue, as a changed DAG file does. The ten runs must not be created again.
    async with database.transaction() as session:
        assert await return_to_queue(session, ["days"]) == {"days"}
    assert (await cleaned(database)).runs == 0
    await set_columns(database, "days", max_active_runs=100)
    while await Scheduler(database).run_once():
        pass
    runs = await keyed_runs(database, "days")
    assert runs == [(f"2026-02-{day:02}", [event]) for day in range(1, 29)]
    await age(database)
    assert (await cleaned(database)).runs == 27


async def _finish(database: Database, run_pk: int, run_id: str) -> None:
    """Store that the run's task has ended, and has updated the asset `flights`."""
    event = EmittedEvent("flights", "x-test://flights", {}, 0)
    task = TaskResult("t", TaskState.SUCCESS, 1, NOW, NOW, events=(event,))
    ours = replace(order(run_pk, 1), dag_id="maker", run_id=run_id)
    async with database.transaction() as session:
        await record_emitted(session, [AttemptUpdate(ours, (task,))])


async def test_a_run_with_the_id_of_one_that_is_gone_emits_its_events(database: Database) -> None:
    await one_asset(database, is_paused=True)
    await add_dag(database, "maker", None)
    for run_id in ("first", "last"):
        async with database.transaction() as session:
            made = await create_manual_run(session, "maker", run_id=run_id)
        await _finish(database, made.pk, run_id)
    await age(database)
    assert (await cleaned(database)).runs == 1
    # Both events stay, because they wait for `report`.
    assert len(await events_in(database)) == 2
    async with database.transaction() as session:
        made = await create_manual_run(session, "maker", run_id="first")
    # A repeated result, of the new run or of the run that stayed, emits nothing twice.
    for _ in range(2):
        await _finish(database, made.pk, "first")
        await _finish(database, made.pk, "last")
    assert [event.source_run_id for event in await events_in(database)] == [
        "first",
        "last",
        "first",
    ]
    assert len({event.idempotency_key for event in await events_in(database)}) == 3


async def test_a_backfill_of_keys_goes_with_its_last_run(database: Database) -> None:
    await daily(database)
    async with database.transaction() as session:
        await start_key_backfill(session, TESTER, "daily", ["2026-03-10", "2026-03-11"])
        await create_manual_run(session, "daily")
    await age(database)
    async with database.transaction() as session:
        await session.execute(update(Backfill).values(created_at=await now_of(database) - AGES))
    assert (await cleaned(database, dry_run=True)).backfills == 1
    found = await cleaned(database)
    assert (found.runs, found.backfills) == (2, 1)
    assert await count(database, Backfill) == await count(database, BackfillKey) == 0


async def test_runs_by_hand_go_also_if_they_came_after_the_last_one_by_time(
    database: Database,
) -> None:
    await timed(database, "d", OnTime(CronDataIntervalTimetable("@yearly", timezone="UTC")))
    await run_once(database)
    async with database.transaction() as session:
        for number in range(3):
            await create_manual_run(session, "d", run_id=f"by-hand-{number}")
    (by_time, *by_hand) = await runs_of(database, "d")
    assert all(run.logical_date is not None for run in by_hand)
    await age(database)
    assert (await cleaned(database)).runs == 2
    assert [run.id for run in await runs_of(database, "d")] == [by_time.id, by_hand[-1].id]


async def test_the_work_for_a_few_events_does_not_grow_with_divided_or_waiting_ones(
    database: Database,
) -> None:
    """The work stays small even before the database has statistics."""
    few, many = 10, 20_000
    async with database.transaction() as session:
        rows = range(1, many + 1)
        divided = [
            {"dag_id": "d", "asset_event_id": one, "asset_id": 1, "run_pk": DIVIDED} for one in rows
        ]
        shares = [
            {**row, "partition_key": f"k{one}", "run_pk": 1 if one <= few else None}
            for one, row in zip(rows, divided, strict=True)
        ]
        for table, values in ((QueuedAssetEvent, divided), (DagPartitionEvent, shares)):
            await session.execute(insert(table), values)
    async with database.transaction() as session:
        connection = await session.connection()
        for script in (
            delete_events(range(1, few + 1), frozenset(rows)),
            single_step(SHARED(run_pks=[1])),
        ):
            async with working(connection) as work:
                await perform(session, script)
            assert work.done < 1_000
    assert await count(database, QueuedAssetEvent) == many - few


def _stopped(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


async def test_a_cleaning_that_was_stopped_deletes_the_logs_the_next_time(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await with_log(database, tmp_path)
    # Stop in the transaction that deletes the run, before the log is deleted.
    monkeypatch.setattr(cleaning, "_delete_logs", _stopped)
    with pytest.raises(KeyboardInterrupt):
        await cleaned(database)
    monkeypatch.undo()
    assert log.exists()
    found = await cleaned(database)
    assert (found.runs, found.logs) == (1, 1)
    assert not log.exists()


async def test_a_run_stays_whose_log_cannot_be_deleted(database: Database, tmp_path: Path) -> None:
    log = await with_log(database, tmp_path)
    log.unlink()
    # A folder cannot be deleted as a file, not even by root.
    log.mkdir()
    with pytest.raises(TriggererError, match=re.escape(str(log))):
        await cleaned(database)
    assert len(await runs_of(database, "maker")) == 2


@pytest.mark.parametrize("runs_at_once", [1, 200])
async def test_other_runs_are_deleted_if_a_log_cannot_be_deleted(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs_at_once: int
) -> None:
    monkeypatch.setattr(cleaning, "_RUNS", runs_at_once)
    stuck = await with_log(database, tmp_path)
    stuck.unlink()
    stuck.mkdir()
    async with database.transaction() as session:
        await create_manual_run(session, "maker", run_id="newest")
    await age(database)
    other = Path(log_path(str(tmp_path), "maker", "last"))
    other.write_text("…")
    with pytest.raises(TriggererError, match=re.escape(str(stuck))):
        await cleaned(database)
    assert [run.run_id for run in await runs_of(database, "maker")] == ["first", "newest"]
    assert not other.exists()
    async with database.reading() as session:
        counted = await read_cleaned(session)
    assert (counted["runs"], counted["logs"]) == (1, 1)
    stuck.rmdir()
    assert (await cleaned(database)).runs == 1


async def test_the_rows_of_a_failed_cleaning_are_counted(
    database: Database, tmp_path: Path
) -> None:
    log = await with_log(database, tmp_path)
    log.unlink()
    log.mkdir()
    await add_asset(database, 1, "flights")
    await emit(database, 1, 3)
    await age(database)
    with pytest.raises(TriggererError, match=re.escape(str(log))):
        await cleaned(database)
    log.rmdir()
    async with database.reading() as session:
        assert (await read_cleaned(session))["asset_events"] == 2
    await cleaned(database)
    async with database.reading() as session:
        counted = await read_cleaned(session)
    assert (counted["asset_events"], counted["runs"]) == (2, 1)


async def with_log(database: Database, folder: Path) -> Path:
    """Add two old runs, and a log for the first."""
    await add_dag(database, "maker", None)
    for run_id in ("first", "last"):
        async with database.transaction() as session:
            await create_manual_run(session, "maker", run_id=run_id)
    await age(database)
    async with database.transaction() as session:
        await session.execute(update(DagRun).values(log_home=str(folder)))
    log = Path(log_path(str(folder), "maker", "first"))
    log.parent.mkdir(parents=True)
    log.write_text("…")
    return log


async def test_states_of_watchers_are_written_in_the_order_in_which_cleaning_locks_them(
    postgres: Database,
) -> None:
    """In another order, the writer of the states and a cleaning could deadlock."""
    database = postgres
    await add_stream(database)
    async with database.transaction() as session:
        session.add(
            Trigger(id=1, digest="t", classpath="x", kwargs={}, stream_digest=FENCE.stream_digest)
        )
    for number in (1, 2):
        await add_asset(database, number, f"a{number}")
        async with database.transaction() as session:
            session.add(
                Watcher(
                    id=number, asset_id=number, name="w", trigger_id=1, path="x", updated_at=NOW
                )
            )

    async def show() -> None:
        states = [WatcherState(number, 1, "running", None, FENCE) for number in (2, 1)]
        async with database.transaction() as session:
            await write_states(session, states)

    waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
    async with anyio.create_task_group() as tasks, database.transaction() as session:
        await session.execute(select(Watcher.id).where(Watcher.id == 1).with_for_update())
        tasks.start_soon(show)
        with anyio.fail_after(30):
            while not await session.scalar(waiting):  # noqa: ASYNC110
                await anyio.sleep(0.01)
        other = select(Watcher.id).where(Watcher.id == 2).with_for_update(nowait=True)
        assert await session.scalar(other) == 2


async def test_rows_that_two_cleanings_delete_at_once_count_once(database: Database) -> None:
    await add_asset(database, 1, "a")
    events = await emit(database, 1, 10)
    for ids, gone in ((events[:4], 4), (events, 6)):
        async with database.transaction() as session:
            assert await perform(session, delete_events(ids, ())) == gone
