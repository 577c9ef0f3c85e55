"""`python -m tests.benchmarks.scheduling`: the speed and the delay of the scheduler, on PostgreSQL.

Each scheduler is a process. The benchmark itself emits events and ends runs. There is no broker and no worker. For 1, 2
and 4 schedulers, the benchmark measures two things at the same time, for `--seconds`:

- the runs per second that are created for the `--always` DAGs, each of which is always due, because it has a backlog of
  missed hours;
- the time from the commit of an event until the wake-up that announces its queued run, p50 and p99. Aim: p99 < 100 ms.

The store has `--dags` DAGs in total, `--assets` assets, and `--old-events` earlier events.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from random import Random

import anyio
from sqlalchemy import select, text

from tests.benchmarks.report import percentile
from tests.services.databases.database_pool import database_pool
from tests.services.databases.postgres import open_postgres
from tests.store.seeding import asset_json, emit
from triggerer.domain.schedules import OnTime, schedule_to_json
from triggerer.domain.timetables import DeltaDataIntervalTimetable
from triggerer.scheduler import Scheduler
from triggerer.store.database.opening import open_database
from triggerer.store.database.transactions import Database, database_now
from triggerer.store.database.wakeups.listening import listen
from triggerer.store.database.wakeups.signals import ALL, Signal
from triggerer.store.schema.models import DagRun

_HOUR = timedelta(hours=1)
_WARM_UP_S = 2
_END_EVERY_S = 0.1
_OLD_AT_ONCE = 250_000
"""The number of events in one INSERT. A longer statement would exceed the time after which a database counts as
unavailable."""
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
SELECT n % :assets + 1, '{}'::jsonb, now(), 0, 'old' || n, 0 FROM generate_series(cast(:first AS bigint), :last) AS n
"""
_OLD_QUEUE = """
INSERT INTO queued_asset_event (dag_id, asset_event_id, asset_id, run_pk)
SELECT 'on' || asset_id, id, asset_id, 0 FROM asset_event
WHERE asset_id <= :waiting AND id > (SELECT max(id) FROM asset_event) - :count
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
        ):
            await session.execute(text(statement), values)
    for first in range(1, arguments.old_events + 1, _OLD_AT_ONCE):
        count = min(_OLD_AT_ONCE, arguments.old_events + 1 - first)
        values = {"assets": arguments.assets, "first": first, "last": first + count - 1}
        async with database.transaction(commit_timeout=timedelta(hours=1)) as session:
            await session.execute(text(_OLD_EVENTS), values)
            await session.execute(text(_OLD_QUEUE), {"waiting": waiting, "count": count})
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
    """Measure with this number of schedulers, each a process of its own, and print the figures."""
    waiting = min(arguments.dags - arguments.always, arguments.assets)
    random, waits = Random(schedulers), []
    command = [sys.executable, "-m", "tests.benchmarks.scheduling", "--serve", url]
    async with AsyncExitStack() as stack:
        for _ in range(schedulers):
            process = await stack.enter_async_context(await anyio.open_process(command))
            stack.callback(process.terminate)
            assert process.stdout is not None
            await process.stdout.receive()
        database = await stack.enter_async_context(open_database(url))
        tasks = await stack.enter_async_context(anyio.create_task_group())
        await tasks.start(listen, database)
        tasks.start_soon(_end_runs, database)
        await anyio.sleep(_WARM_UP_S)
        before, began = await _runs(database), time.monotonic()
        while time.monotonic() - began < arguments.seconds:
            waits.append(await _until_queued(database, random.randint(1, waiting)))
        made = await _runs(database) - before
        seconds = time.monotonic() - began
        tasks.cancel_scope.cancel()
    waits.sort()
    print(
        f"{arguments.dags} DAGs, {schedulers} schedulers: {made / seconds:,.0f} runs/s; event → queued run "
        f"p50 {percentile(waits, 50):.1f} ms, p99 {percentile(waits, 99):.1f} ms (n={len(waits)})",
        flush=True,
    )


async def _serve(url: str) -> None:
    """Run a scheduler until the process is terminated."""
    async with open_database(url) as database, anyio.create_task_group() as tasks:
        await tasks.start(listen, database)
        await tasks.start(Scheduler(database).run)
        print("ready", flush=True)


async def _until_queued(database: Database, number: int) -> float:
    """Emit an event, and return the ms from its commit until its run is announced."""
    with database.wakeups.subscribe(Signal.RUNS_QUEUED) as subscription:
        await emit(database, number)
        began = time.perf_counter()
        while True:
            queued = (await subscription.wait(None)).get(Signal.RUNS_QUEUED, set())
            if queued & {f"on{number}", ALL}:
                return 1_000 * (time.perf_counter() - began)


async def _end_runs(database: Database) -> None:
    """Mark queued runs as successful, as if executors had run them, so that no DAG reaches its limit of active runs."""
    end = text("UPDATE dag_run SET state = 'success' WHERE id > :ended - 1000 AND state = 'queued'")
    while True:
        ended = await _runs(database)
        await anyio.sleep(_END_EVERY_S)
        async with database.transaction() as session:
            await session.execute(end, {"ended": ended})


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
    parser.add_argument("--serve", metavar="URL", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.serve is not None:
        anyio.run(_serve, given.serve, backend_options={"use_uvloop": True})
        return
    with open_postgres() as server, database_pool(server).database() as url:
        anyio.run(_measure, url, given)


if __name__ == "__main__":
    main()
