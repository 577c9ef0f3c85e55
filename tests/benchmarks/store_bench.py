"""Measures the store: rows/s through `EventRecorder` and with raw bulk inserts, and the time of a commit.

Run with `.venv/bin/python -m tests.benchmarks.store_bench [--rows 200000] [sqlite|postgresql ...]`.
Each asset event is queued for one DAG, as in the service. The benchmark starts its own PostgreSQL.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import anyio
import asyncpg

from tests.services.databases.postgres import open_postgres
from triggerer.domain.events import EventSource, Fence, WatcherRef
from triggerer.store.database.opening import open_database
from triggerer.store.database.transactions import Database
from triggerer.store.events.bulk_insert import EventRow, insert_events
from triggerer.store.events.recorder import EventRecorder
from triggerer.store.schema.migrate import upgrade
from triggerer.store.schema.models import Asset, Dag, DagScheduleAsset, Stream

_NOW = datetime(2026, 1, 1, tzinfo=UTC)
_FENCE = Fence("stream", "bench", 1)
_SOURCE = EventSource((WatcherRef(1, 1),), _FENCE)


class _Event:
    """A pending event that records the instant of its completion."""

    completed: ClassVar[anyio.Event | None] = None
    __slots__ = ("completed_at", "idempotency_key", "ordinal", "payload", "source", "submitted_at")
    published_at = None

    def __init__(self, number: int) -> None:
        self.payload: Any = {
            "value": {"flight": number, "carrier": "UA", "origin": "EWR", "dep_delay": 12.5},
            "key": "UA",
            "topic": "flights",
            "partition": number % 8,
            "offset": number,
            "timestamp": 1_700_000_000_000,
        }
        self.source = _SOURCE
        self.idempotency_key = f"3f2a9c/flights/{number % 8}/{number}"
        self.ordinal = 0
        self.submitted_at = 0.0
        self.completed_at = 0.0

    def submit_to(self, recorder: EventRecorder) -> None:
        recorder.submit_nowait(self, self, self.source, self.idempotency_key, self.ordinal)

    def complete(self, error: Exception | None) -> None:
        if error is not None:
            raise error
        self.completed_at = time.perf_counter()
        if _Event.completed is not None:
            _Event.completed.set()


async def seed(database: Database) -> None:
    await upgrade(database)
    async with database.transaction() as session:
        session.add(Asset(id=1, name="flights", uri="kafka://b/flights", created_at=_NOW))
        session.add(Dag(dag_id="report", path="report.py", updated_at=_NOW, schedule=None))
        session.add(Stream(digest="stream", key="stream", owner="bench", epoch=1))
        await session.flush()
        session.add(DagScheduleAsset(dag_id="report", asset_id=1))


async def insert_rows(database: Database, rows: int, size: int) -> float:
    """Insert prepared rows with the bulk statements alone; return the rows per second."""
    batches = [
        [
            EventRow(1, f'{{"offset":{n},"value":"{"x" * 120}"}}', _NOW, 1, f"raw/{n}", 0)
            for n in range(start, start + size)
        ]
        for start in range(0, rows, size)
    ]
    began = time.perf_counter()
    for batch in batches:
        await database.perform(insert_events(batch))
    return rows / (time.perf_counter() - began)


async def copy_rows(url: str, rows: int) -> float:
    """Return the rows per second of COPY, PostgreSQL's fastest way, into an unlogged table without an index."""
    connection = await asyncpg.connect(url.replace("+asyncpg", ""))
    try:
        await connection.execute("CREATE UNLOGGED TABLE limits (n bigint, extra jsonb, key text)")
        extra = '{"offset":1,"value":"' + "x" * 120 + '"}'
        records = [(n, extra, f"raw/{n}") for n in range(rows)]
        began = time.perf_counter()
        await connection.copy_records_to_table("limits", records=records)
        return rows / (time.perf_counter() - began)
    finally:
        await connection.close()


async def record_rows(database: Database, rows: int) -> tuple[float, int]:
    """Submit a backlog to the recorder, with at most 20,000 pending events.

    Returns:
        The rows per second, and the number of group commits.
    """
    recorder = EventRecorder(database, on_fenced=lambda fence: None)
    events = [_Event(number) for number in range(rows)]
    # Unlike a service, this process has all events in memory. `freeze` keeps the garbage collector from walking them.
    gc.collect()
    gc.freeze()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(recorder.run)
        began = time.perf_counter()
        for event in events:
            event.submit_to(recorder)
            if recorder.unsettled >= 20_000:
                _Event.completed = anyio.Event()
                await _Event.completed.wait()
        await recorder.drained()
        seconds = time.perf_counter() - began
        tasks.cancel_scope.cancel()
    return rows / seconds, recorder.flushes


async def commit_latencies(database: Database, count: int, first: int) -> list[float]:
    """Submit single events at about 100/s; return the ms from submission to confirmation of each event."""
    recorder = EventRecorder(database, on_fenced=lambda fence: None)
    events = [_Event(first + number) for number in range(count)]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(recorder.run)
        for event in events:
            event.submitted_at = time.perf_counter()
            event.submit_to(recorder)
            await anyio.sleep(0.01)
        await recorder.drained()
        tasks.cancel_scope.cancel()
    return [(event.completed_at - event.submitted_at) * 1000 for event in events]


@contextmanager
def _url(kind: str) -> Iterator[str]:
    if kind == "sqlite":
        with tempfile.TemporaryDirectory() as folder:
            yield f"sqlite:///{Path(folder) / 'bench.db'}"
    else:
        with open_postgres() as server:
            yield server.create_database("bench")


async def _measure(kind: str, url: str, rows: int) -> None:
    async with open_database(url) as database:
        await seed(database)
        recorded, flushes = await record_rows(database, rows)
        print(f"{kind:12} recorder        {recorded:>9,.0f} rows/s  ({flushes} flushes)")
        raw = await insert_rows(database, rows, 5_000)
        print(f"{kind:12} raw bulk insert {raw:>9,.0f} rows/s")
        if kind == "postgresql":
            print(f"{kind:12} raw COPY        {await copy_rows(url, rows):>9,.0f} rows/s")
        took = sorted(await commit_latencies(database, 200, rows))
        p99 = took[int(len(took) * 0.99) - 1]
        print(f"{kind:12} one event       p50 {statistics.median(took):.2f} ms, p99 {p99:.2f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", default=["sqlite", "postgresql"])
    parser.add_argument("--rows", type=int, default=200_000)
    arguments = parser.parse_args()
    for kind in arguments.kinds:
        with _url(kind) as url:
            anyio.run(_measure, kind, url, arguments.rows, backend_options={"use_uvloop": True})


if __name__ == "__main__":
    main()
