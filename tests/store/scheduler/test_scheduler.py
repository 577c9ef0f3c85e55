import re
import sqlite3
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import pairwise
from typing import Any

import anyio
import pytest
from sqlalchemy import text, update

from tests.services.databases.postgres import PostgresServer
from tests.store.scheduling import check_conservation, end, one_asset, set_columns, two_assets
from tests.store.seeding import (
    Event,
    add_alias,
    add_asset,
    add_dag,
    asset_json,
    emit,
    events_in,
    queue_of,
    record,
    recording,
    runs_of,
    until,
)
from triggerer.domain.runs import RunState
from triggerer.errors import DagError, RowRefused
from triggerer.scheduler import Scheduler
from triggerer.store.database.clock import Now
from triggerer.store.database.opening import open_database
from triggerer.store.database.postgres.runner import _Transaction
from triggerer.store.database.script import Row, Script, Step
from triggerer.store.database.sqlite.thread import in_thread
from triggerer.store.database.transactions import Database
from triggerer.store.database.wakeups.signals import Signal, announce
from triggerer.store.events.emit import NewAssetEvent, record_events
from triggerer.store.runs.creation.create_run import create_manual_run
from triggerer.store.runs.creation.create_run_step import CreateRun
from triggerer.store.schema.models import DagRun

FOR_EVER = timedelta(hours=1)


@asynccontextmanager
async def _scheduling(database: Database, **options: Any) -> AsyncIterator[Scheduler]:
    """Run a scheduler that does not sweep, so that only wake-ups and due times make it look."""
    options.setdefault("sweep_interval", FOR_EVER)
    scheduler = Scheduler(database, **options)
    async with anyio.create_task_group() as tasks:
        await tasks.start(scheduler.run)
        yield scheduler
        tasks.cancel_scope.cancel()


async def _eventually(database: Database, question: Callable[[], Any], timeout: float = 10) -> Any:
    with anyio.fail_after(timeout):
        while not (answer := await question()):  # noqa: ASYNC110
            await anyio.sleep(0.01)
    return answer


async def test_one_run_takes_all_the_events_that_its_dag_had_queued(database: Database) -> None:
    await two_assets(database, params={"limit": 3})
    scheduler = Scheduler(database)
    flights = await emit(database, 1, 30)
    assert await scheduler.run_once() == 0
    weather = await emit(database, 2, 20)
    subscription = database.wakeups.subscribe(Signal.RUNS_QUEUED)
    assert await scheduler.run_once() == 1
    assert await scheduler.run_once() == 0
    (run,) = await runs_of(database, "join")
    assert await queue_of(database, "join") == [(one, run.id) for one in (*flights, *weather)]
    assert run.state == "queued"
    assert run.run_type == "asset_triggered"
    assert run.run_id == f"asset_triggered__{run.run_after.isoformat(timespec='microseconds')}"
    assert run.params == {"limit": 3}
    assert subscription.take_nowait() == {Signal.RUNS_QUEUED: {"join"}}


async def test_a_commit_of_events_wakes_the_scheduler_at_once(database: Database) -> None:
    await one_asset(database)
    async with _scheduling(database):
        for number in range(1, 4):
            await emit(database, 1)
            await _eventually(database, lambda n=number: _has_runs(database, n))
    await check_conservation(database, "report", 3)


async def _has_runs(database: Database, count: int) -> bool:
    return len(await runs_of(database, "report")) == count


@pytest.mark.rule(
    "events that arrive at `max_active_runs` start a run only after yet another event"
)
async def test_events_at_the_cap_wait_and_go_when_a_run_ends(database: Database) -> None:
    await one_asset(database, max_active_runs=2)
    async with _scheduling(database):
        for number in (1, 2):
            await emit(database, 1)
            await _eventually(database, lambda n=number: _has_runs(database, n))
        held = await emit(database, 1, 5)
        await anyio.wait_all_tasks_blocked()
        first, _ = await runs_of(database, "report")
        # No further event arrives, so the end of the first run alone must start the run for the held events.
        await end(database, first)
        await _eventually(database, lambda: _has_runs(database, 3))
    last = (await runs_of(database, "report"))[-1]
    assert [one for one in await queue_of(database, "report") if one[1] == last.id] == [
        (event_id, last.id) for event_id in held
    ]


@pytest.mark.rule("an event during a pause never starts a run")
async def test_events_during_a_pause_start_a_run_when_it_ends(database: Database) -> None:
    await one_asset(database, is_paused=True)
    async with _scheduling(database):
        await emit(database, 1, 3)
        assert await Scheduler(database).run_once() == 0
        assert await runs_of(database, "report") == []
        await set_columns(database, "report", is_paused=False)
        await _eventually(database, lambda: _has_runs(database, 1))
    await check_conservation(database, "report", 3)


async def test_a_stale_dag_is_held_and_goes_on_when_its_file_is_back(database: Database) -> None:
    await one_asset(database)
    await emit(database, 1, 3)
    await set_columns(database, "report", is_stale=True)
    scheduler = Scheduler(database)
    assert await scheduler.run_once() == 0
    await set_columns(database, "report", is_stale=False)
    assert await scheduler.run_once() == 1
    await check_conservation(database, "report", 3)


async def test_a_lost_wakeup_is_made_up_for_by_the_sweep(database: Database) -> None:
    await one_asset(database)
    async with _scheduling(database, sweep_interval=timedelta(seconds=0.2)):
        # This commit announces nothing.
        async with database.writer.begin() as connection:
            session_free = text(
                "INSERT INTO queued_asset_event (dag_id, asset_event_id, asset_id) "
                "VALUES ('report', 1, 1)"
            )
            await connection.execute(session_free)
        await _eventually(database, lambda: _has_runs(database, 1))


async def test_one_event_for_each_run_takes_the_oldest_of_each_asset(database: Database) -> None:
    await two_assets(database, events_per_run=1, max_active_runs=10)
    flights = await emit(database, 1, 4)
    weather = await emit(database, 2, 3)
    assert await Scheduler(database).run_once() == 3
    runs = await runs_of(database, "join")
    queue = dict(await queue_of(database, "join"))
    for flight, cloud, run in zip(flights, weather, runs, strict=False):
        assert (queue[flight], queue[cloud]) == (run.id, run.id)
    assert queue[flights[3]] is None
    assert len({run.run_id for run in runs}) == 3
    assert all(a.run_after < b.run_after for a, b in pairwise(runs))


async def test_a_deep_backlog_in_small_runs_is_created_up_to_the_cap(database: Database) -> None:
    await one_asset(database, events_per_run=7, max_active_runs=400)
    await emit(database, 1, 2_000)
    scheduler = Scheduler(database, max_dagruns_to_create_per_loop=50)
    assert await scheduler.run_once() == 286
    await check_conservation(database, "report", 2_000)
    assert all(pk is not None for _, pk in await queue_of(database, "report"))


@pytest.mark.rule(
    "two schedulers turn one event into two runs",
    "two schedulers both find `a & b` satisfied, and both create a run",
)
async def test_two_schedulers_make_one_run_of_one_event(store_url: str, database: Database) -> None:
    await two_assets(database, max_active_runs=1_000)
    async with open_database(store_url) as other:
        for _ in range(10):
            await emit(database, 1)
            await emit(database, 2)
            async with anyio.create_task_group() as tasks:
                for store in (database, other, database, other):
                    tasks.start_soon(Scheduler(store).run_once)
    assert len(await runs_of(database, "join")) == 10
    await check_conservation(database, "join", 20)


@pytest.mark.rule("an event that commits after a newer event is skipped")
async def test_an_older_event_that_commits_late_is_not_skipped(postgres: Database) -> None:
    await one_asset(postgres)
    async with postgres.transaction() as late:
        older = await record_events(late, [NewAssetEvent(1)])
        newer = await emit(postgres, 1)
        assert older < newer
        assert await Scheduler(postgres).run_once() == 1
    assert await Scheduler(postgres).run_once() == 1
    first, second = await runs_of(postgres, "report")
    assert await queue_of(postgres, "report") == [(older[0], second.id), (newer[0], first.id)]


@pytest.mark.rule("a run gets its events in the wrong order, or events that are newer than the run")
async def test_no_run_is_older_than_an_event_of_its_own(database: Database) -> None:
    await one_asset(database, max_active_runs=100)
    async with recording(database) as recorder:
        for number in range(20):
            await record(recorder, Event(number))
            await Scheduler(database).run_once()
    events = {row.id: row for row in await events_in(database)}
    runs = {run.id: run for run in await runs_of(database, "report")}
    for event_id, run_pk in await queue_of(database, "report"):
        assert run_pk is not None
        assert events[event_id].timestamp <= runs[run_pk].run_after


async def test_no_run_of_several_is_older_than_an_event_that_came_while_they_were_made(
    postgres: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await one_asset(postgres, events_per_run=2, max_active_runs=100)
    await emit(postgres, 1, 3)
    perform_step = _Transaction.perform_step

    async def emit_before(transaction: _Transaction, step: Step) -> list[Row]:
        if isinstance(step, CreateRun) and step.run_after is not None:
            await emit(postgres, 1)
        return await perform_step(transaction, step)

    monkeypatch.setattr(_Transaction, "perform_step", emit_before)
    await Scheduler(postgres).run_once()
    events = {row.id: row for row in await events_in(postgres)}
    runs = {run.id: run for run in await runs_of(postgres, "report")}
    taken = [(event_id, pk) for event_id, pk in await queue_of(postgres, "report") if pk]
    assert len(taken) == 4
    for event_id, pk in taken:
        assert events[event_id].timestamp <= runs[pk].run_after


async def test_an_instance_whose_clock_is_ahead_makes_no_event_of_the_future(
    postgres: Database,
) -> None:
    from triggerer.store.database.clock import utc_now

    await one_asset(postgres)
    async with recording(postgres, now=lambda: utc_now() + timedelta(hours=1)) as recorder:
        await record(recorder, Event("from a host whose clock is wrong"))
    await Scheduler(postgres).run_once()
    (stored,) = await events_in(postgres)
    (run,) = await runs_of(postgres, "report")
    assert stored.timestamp <= run.run_after


async def test_an_event_on_an_alias_starts_dags_that_wait_for_the_alias(database: Database) -> None:
    await add_asset(database, 1, "result")
    await add_alias(database, 5, "results")
    await add_dag(database, "report", {"alias": "results"}, aliases=[5])
    await emit(database, 1)
    assert await Scheduler(database).run_once() == 0
    async with database.transaction() as session:
        await record_events(session, [NewAssetEvent(1, alias_ids=(5,))])
    assert await Scheduler(database).run_once() == 1


async def test_waiting_events_of_an_asset_that_left_the_dag_go_into_its_next_run(
    database: Database,
) -> None:
    await two_assets(database)
    await emit(database, 1)
    async with database.transaction() as session:
        await session.execute(text("DELETE FROM dag_schedule_asset WHERE asset_id = 1"))
    await set_columns(database, "join", schedule=asset_json("weather"))
    await emit(database, 2)
    assert await Scheduler(database).run_once() == 1
    assert all(pk is not None for _, pk in await queue_of(database, "join"))


async def test_a_schedule_that_cannot_be_read_stops_nobody_else(database: Database) -> None:
    await one_asset(database)
    await add_dag(database, "broken", {"xor": []}, assets=[1])
    await emit(database, 1)
    assert await Scheduler(database).run_once() == 1
    assert await queue_of(database, "broken") == [(1, None)]


@pytest.mark.rule("busy DAGs starve the others")
async def test_many_dags_are_served_with_any_limit_of_a_loop(database: Database) -> None:
    await add_asset(database, 1, "flights")
    for number in range(130):
        await add_dag(database, f"dag{number:03}", asset_json("flights"), assets=[1])
    await emit(database, 1, 2)
    assert await Scheduler(database, max_dagruns_to_create_per_loop=8).run_once() == 130


async def test_runs_wait_for_a_postgresql_that_is_stopped(
    postgres: Database, postgres_server: PostgresServer
) -> None:
    await one_asset(postgres)
    async with _scheduling(postgres) as scheduler:
        await emit(postgres, 1)
        await _eventually(postgres, lambda: _has_runs(postgres, 1))
        await anyio.to_thread.run_sync(postgres_server.stop)
        postgres.wakeups.publish(Signal.EVENTS_QUEUED, "report")
        await until(lambda: scheduler.trouble is not None)
        await anyio.to_thread.run_sync(postgres_server.start)
        await emit(postgres, 1)
        await _eventually(postgres, lambda: _has_runs(postgres, 2), timeout=30)
        assert scheduler.trouble is None


async def test_a_run_by_hand_overrides_params_adds_others_and_needs_no_event(
    database: Database,
) -> None:
    await one_asset(database, params={"a": 1, "b": 2}, is_paused=True, max_active_runs=1)
    subscription = database.wakeups.subscribe(Signal.RUNS_QUEUED)
    async with database.transaction() as session:
        first = await create_manual_run(session, "report", params={"b": 3, "c": {"d": 1}})
        second = await create_manual_run(session, "report", run_id="mine")
    runs = await runs_of(database, "report")
    assert [run.run_id for run in runs] == [first.run_id, "mine"]
    assert first.run_id.startswith("manual__")
    assert [run.params for run in runs] == [
        {"a": 1, "b": 3, "c": {"d": 1}},
        {"a": 1, "b": 2},
    ]
    assert subscription.take_nowait() == {Signal.RUNS_QUEUED: {"report"}}
    assert second.pk == runs[1].id


@pytest.mark.parametrize("run_id", ["mine", "", "x" * 251, "a\0b"])
async def test_a_run_id_that_is_taken_or_none_is_refused(database: Database, run_id: str) -> None:
    await one_asset(database)
    async with database.transaction() as session:
        await create_manual_run(session, "report", run_id="mine")
    with pytest.raises(RowRefused):
        async with database.transaction() as session:
            await create_manual_run(session, "report", run_id=run_id)


async def test_a_run_by_hand_of_a_dag_that_is_gone_is_refused(database: Database) -> None:
    await one_asset(database, is_stale=True)
    for dag_id in ("report", "unknown"):
        with pytest.raises(DagError, match=dag_id):
            async with database.transaction() as session:
                await create_manual_run(session, dag_id)


async def test_a_dag_may_have_any_name(database: Database) -> None:
    """On PostgreSQL, the name is a literal in the SQL that begins the transaction, so it must be quoted."""
    await add_asset(database, 1, "flights")
    names = ["it's", 'say "so"', "back\\slash'; ROLLBACK; --", "$1", "ünïcode", "%s {x}"]
    for name in names:
        await add_dag(database, name, asset_json("flights"), assets=[1])
    await emit(database, 1)
    assert await Scheduler(database).run_once() == len(names)
    for name in names:
        assert len(await runs_of(database, name)) == 1
        await check_conservation(database, name, 1)


class _Trace:
    """A step after which SQLite appends each statement of the connection to `into`."""

    def __init__(self, into: list[str]) -> None:
        self.into = into

    def on_sqlite(self, connection: sqlite3.Connection, now: Now) -> list[Row]:
        connection.set_trace_callback(self.into.append)
        return []

    def on_postgres(self) -> tuple[str, Sequence[Any]]:
        raise NotImplementedError


def _traced(into: list[str]) -> Script[None]:
    yield _Trace(into)


async def test_an_index_serves_every_question_that_is_asked_for_each_wakeup(
    sqlite: Database,
) -> None:
    """A DAG's history must not slow down its next run."""
    await two_assets(sqlite, events_per_run=1)
    await add_dag(sqlite, "report", asset_json("flights"), assets=[1])
    await emit(sqlite, 1, 3)
    await emit(sqlite, 2, 3)
    # All statements as SQLite sees them, with their parameters filled in.
    traced: list[str] = []
    await sqlite.perform(_traced(traced))
    async with sqlite.reader.connect() as connection:
        await in_thread(connection, lambda raw: raw.set_trace_callback(traced.append))
    assert await Scheduler(sqlite).run_once() == 4
    asked = [statement for statement in traced if "queued_asset_event" in statement]
    for what in (
        "SELECT d.dag_id FROM dag d",
        "FROM dag d\nLEFT JOIN",
        "UPDATE queued_asset_event",
    ):
        assert any(what in statement for statement in asked), what
    async with sqlite.transaction() as session:
        connection = await session.connection()
        for statement in asked:
            plan = await connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}")
            for line in (row[3] for row in plan):
                if re.match(r"(SCAN|SEARCH) (q|c|queued_asset_event)\b", line):
                    # The statement reads only waiting entries, or one entry by its whole key.
                    assert (
                        "ix_queued_asset_event_waiting" in line
                        or "dag_id=? AND asset_event_id=?" in line
                    ), (statement, line)


async def test_the_end_of_a_run_asks_the_database_only_about_a_dag_that_the_cap_held_back(
    database: Database,
) -> None:
    await one_asset(database, max_active_runs=1)
    scheduler = Scheduler(database)
    async with anyio.create_task_group() as tasks:
        await tasks.start(scheduler.run)
        await emit(database, 1)
        await until(lambda: scheduler.runs_created == 1)
        looks: list[int] = []
        perform_step, perform = database.perform_step, database.perform

        async def counted(what: Any) -> Any:
            looks.append(1)
            return await (perform(what) if isinstance(what, Generator) else perform_step(what))

        database.perform_step = database.perform = counted  # type: ignore[method-assign, assignment]
        (run,) = await runs_of(database, "report")
        database.wakeups.publish(Signal.RUNS_ENDED, "another")
        for _ in range(10):
            await anyio.sleep(0.01)
        assert looks == []
        async with database.transaction() as session:
            await session.execute(update(DagRun).values(state=RunState.SUCCESS))
            announce(session, Signal.RUNS_ENDED, run.dag_id)
        await emit(database, 1)
        await until(lambda: scheduler.runs_created == 2)
        assert looks
        tasks.cancel_scope.cancel()
