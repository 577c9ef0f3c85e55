"""`python -m tests.benchmarks.scheduling`: how soon and how many runs the scheduler makes, on PostgreSQL.

Beside it, on one event loop, are only what emits events and what ends runs at once; no broker and no worker. It says:

- for 1, 2 and 4 schedulers, how many runs a second are made of DAGs that are always due (`--always`, each with a
  backlog of missed hours), with `--dags` DAGs and `--assets` assets, and `--old-events` events in the tables;
- meanwhile, for `--seconds`, how long after its commit an event's run is queued: p50, p99; aim: p99 < 100 ms.

Ten million old events (some ten minutes to insert): `--old-events 10000000`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from random import Random

import anyio
import anyio.lowlevel
from sqlalchemy import select, text

from tests.benchmarks.report import percentile
from tests.services.database_pool import database_pool
from tests.services.postgres import open_postgres
from tests.store.seeding import asset_json, emit
from triggerer.domain.schedules import OnTime, schedule_to_json
from triggerer.domain.timetables import DeltaDataIntervalTimetable
from triggerer.scheduler import Scheduler
from triggerer.store.engine.database import Database, database_now
from triggerer.store.engine.opening import open_database
from triggerer.store.models import DagRun

_HOUR = timedelta(hours=1)
_SEED_ASSETS = """
INSERT INTO asset (id, name, uri, "group", extra, created_at)
SELECT n, 'a' || n, 'x-test://a' || n, 'asset', '{}'::jsonb, now() FROM generate_series(1, :assets) AS n
"""
_SEED_DAGS = """
INSERT INTO dag (dag_id, path, tags, schedule, max_active_runs, params, tasks, is_paused, is_stale,
                 updated_at, start_date, catchup, next_run_after)
SELECT cast(:prefix AS text) || n, 'd.py', '[]'::jsonb, cast(:schedule AS text)::jsonb, :cap, '{}'::jsonb,
       '[]'::jsonb, false, false, now(), cast(:start AS timestamptz), true,
       coalesce(cast(:due AS timestamptz), '9999-01-01'::timestamptz)
FROM generate_series(1, :count) AS n
"""
_SEED_WAITS = """
INSERT INTO dag_schedule_asset (dag_id, asset_id) SELECT 'on' || n, n FROM generate_series(1, :count) AS n
"""
_OWN_SCHEDULE = """
UPDATE dag SET schedule = jsonb_build_object('asset', jsonb_build_object(
    'name', 'a' || substr(dag_id, 3), 'uri', 'x-test://a' || substr(dag_id, 3)))
WHERE dag_id LIKE 'on%'
"""
_OLD_EVENTS = """
INSERT INTO asset_event (asset_id, extra, timestamp, watcher_id, idempotency_key, ordinal)
SELECT n % :assets + 1, '{}'::jsonb, now(), 0, 'old' || n, 0 FROM generate_series(1, :events) AS n
"""
_OLD_QUEUE = """
INSERT INTO queued_asset_event (dag_id, asset_event_id, asset_id, run_pk)
SELECT 'on' || asset_id, id, asset_id, 0 FROM asset_event WHERE asset_id <= :waiting
"""


async def _seed(database: Database, arguments: argparse.Namespace) -> datetime:
    hourly = schedule_to_json(OnTime(DeltaDataIntervalTimetable(_HOUR)))
    waiting = min(arguments.dags - arguments.always, arguments.assets)
    async with database.transaction(commit_timeout=timedelta(hours=1)) as session:
        start = await database_now(session) - 400_000 * _HOUR
        never: dict[str, object] = {"start": None, "due": None, "cap": 100_000}
        always = {**never, "start": start, "due": start + _HOUR}
        for statement, values in (
            (_SEED_ASSETS, {"assets": arguments.assets}),
            (
                _SEED_DAGS,
                {
                    **always,
                    "prefix": "t",
                    "count": arguments.always,
                    "schedule": json.dumps(hourly),
                },
            ),
            (
                _SEED_DAGS,
                {
                    **never,
                    "prefix": "on",
                    "count": waiting,
                    "schedule": json.dumps(asset_json("a")),
                },
            ),
            (_SEED_WAITS, {"count": waiting}),
            (_OWN_SCHEDULE, {}),
            (_OLD_EVENTS, {"assets": arguments.assets, "events": arguments.old_events}),
            (_OLD_QUEUE, {"waiting": waiting}),
        ):
            await session.execute(text(statement), values)
    return start


async def _measure(url: str, arguments: argparse.Namespace) -> None:
    async with open_database(url) as database:
        await _seed(database, arguments)
        async with database.writer.connect() as connection:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            await connection.execute(text("ANALYZE"))
    for schedulers in arguments.schedulers:
        await _with(url, schedulers, arguments)


async def _with(url: str, schedulers: int, arguments: argparse.Namespace) -> None:
    """So many schedulers in one process, each with its own connections, as services of their own would have them."""
    waiting = min(arguments.dags - arguments.always, arguments.assets)
    random, waits = Random(schedulers), []
    async with anyio.create_task_group() as tasks:
        for _ in range(schedulers):
            tasks.start_soon(_schedule, url)
        async with open_database(url) as database:
            await anyio.sleep(1)
            before, began = await _runs(database), time.monotonic()
            while time.monotonic() - began < arguments.seconds:
                number = random.randint(1, waiting)
                waits.append(await _until_queued(database, number))
            made = await _runs(database) - before
            seconds = time.monotonic() - began
        tasks.cancel_scope.cancel()
    waits.sort()
    print(
        f"{schedulers} schedulers: {made / seconds:,.0f} runs/s; event → queued run "
        f"p50 {percentile(waits, 50):.1f} ms, p99 {percentile(waits, 99):.1f} ms (n={len(waits)})",
        flush=True,
    )


async def _schedule(url: str) -> None:
    async with open_database(url) as database, anyio.create_task_group() as tasks:
        tasks.start_soon(Scheduler(database).run)
        await anyio.lowlevel.checkpoint()
        # Other processes hear of events by NOTIFY; here each database has wakeups of its own.
        from triggerer.store.wakeups.listening import listen

        await listen(database)


async def _until_queued(database: Database, number: int) -> float:
    """Milliseconds from the commit of an event to its run; looked for every millisecond."""
    (event,) = await emit(database, number)
    began = time.perf_counter()
    query = text(
        "SELECT run_pk FROM queued_asset_event WHERE dag_id = :dag AND asset_event_id = :event"
    )
    while True:
        async with database.reading() as session:
            if await session.scalar(query, {"dag": f"on{number}", "event": event}) is not None:
                return 1_000 * (time.perf_counter() - began)
        await anyio.sleep(0.001)


async def _runs(database: Database) -> int:
    async with database.reading() as session:
        newest = select(DagRun.id).order_by(DagRun.id.desc()).limit(1)
        return await session.scalar(newest) or 0


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dags", type=int, default=2_000)
    parser.add_argument("--assets", type=int, default=5_000)
    parser.add_argument("--always", type=int, default=200)
    parser.add_argument("--old-events", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--schedulers", type=int, nargs="+", default=[1, 2, 4])
    given = parser.parse_args(arguments)
    with open_postgres() as server, database_pool(server).database() as url:
        anyio.run(_measure, url, given)


if __name__ == "__main__":
    main()
