"""Measures how fast each part of the service works alone. The service cannot be faster than its parts.

Each part is measured by the shortest program that does the part's work. The program runs in one
process, with uvloop as in the service.
"""

from __future__ import annotations

import gc
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from uuid import uuid4

import anyio
import asyncpg
import orjson
from aiokafka import AIOKafkaConsumer
from anyio import to_thread
from sqlalchemy import make_url

from tests.benchmarks.load import publish_paced
from triggerer.store.database.engines import SQLITE_WRITER_PRAGMAS
from triggerer.store.database.opening import open_database
from triggerer.store.database.transactions import Database
from triggerer.store.events.batch_statement import RecordEvents
from triggerer.store.events.bulk_insert import EventRow
from triggerer.store.events.event_rows import EventRows, SharedFields
from triggerer.store.schema.migrate import upgrade
from triggerer.store.schema.models import Asset, Dag, DagScheduleAsset

# The recorder's largest transaction has this number of rows.
_BATCH_ROWS: Final = 5_000
_NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Limits:
    """The speed of the parts: `consumed` in messages per second, the other figures in rows per second."""

    consumed: float
    """A bare consumer that calls `getmany` and decodes nothing."""
    inserted_rows: float
    """Inserts prepared rows and their queue entries in bulk, with the service's own statements."""
    driver_rows: float
    """Inserts prepared rows with the driver's `executemany`, and the queue entries with one statement per batch."""
    series_rows: float
    """Does all steps in one loop: fetch, decode, build the rows, insert in bulk, commit, commit the offsets."""


async def measure_limits(
    bootstrap: str,
    topic: str,
    urls: tuple[str, str],
    *,
    messages: int,
    watchers: int,
    rows_per_message: int,
) -> Limits:
    """Measure the parts of the service, one after the other.

    Args:
        urls: The URLs of two empty databases. The first is for `inserted_rows` and `series_rows`, the second for
            `driver_rows`.
    """
    url, other_url = urls
    consumed, records = await _consume(bootstrap, topic, messages)
    async with open_database(url) as database:
        await _seed(database, watchers)
        rows = [
            row for record in records for row in _rows(record, watchers, rows_per_message, "raw")
        ]
        records.clear()
        inserted = await _insert(database, rows)
        async with open_database(other_url) as other:
            await _seed(other, watchers)
        driver_rows = await _insert_by_driver(other_url, rows)
        rows.clear()
        series = await _series(
            database, bootstrap, topic, messages, watchers=watchers, each=rows_per_message
        )
    return Limits(consumed, inserted, driver_rows, series)


def _consumer(bootstrap: str, topic: str) -> AIOKafkaConsumer:
    # A new consumer group starts at the beginning of the topic.
    group = f"parts-{uuid4()}"
    return AIOKafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        max_partition_fetch_bytes=1 << 20,
    )


async def _consume(bootstrap: str, topic: str, messages: int) -> tuple[float, list[Any]]:
    async with _consumer(bootstrap, topic) as consumer:
        found = await _first(consumer)
        began = time.perf_counter()
        while len(found) < messages:
            found.extend(_flat(await consumer.getmany(timeout_ms=1_000, max_records=_BATCH_ROWS)))
        return (messages - 1) / (time.perf_counter() - began), found


async def _first(consumer: AIOKafkaConsumer) -> list[Any]:
    """Wait for the first messages and return them.

    The caller starts its clock afterwards, so that joining the group and the first fetch do not count.
    """
    while not (found := _flat(await consumer.getmany(timeout_ms=10_000, max_records=1))):
        pass
    return found


async def measure_latency(bootstrap: str, topic: str, *, rate: int, seconds: float) -> list[float]:
    """Return the sorted latencies of Kafka alone, in ms.

    A latency begins when a message is given to the client, and ends when a bare consumer has the message.
    """
    arrived: dict[tuple[int, int], int] = {}
    async with _consumer(bootstrap, topic) as consumer, anyio.create_task_group() as tasks:

        async def consume() -> None:
            while True:
                for message in _flat(await consumer.getmany(timeout_ms=1_000)):
                    arrived[message.partition, message.offset] = time.monotonic_ns()

        tasks.start_soon(consume)
        # The first messages wait until the consumer has joined its group, so they do not count.
        warm_up = await publish_paced(bootstrap, topic, rate=50, seconds=1)
        paced = await publish_paced(bootstrap, topic, rate=rate, seconds=seconds)
        with anyio.fail_after(30):
            # Nothing reports the arrival of the last messages, so look for them.
            while len(arrived) < len(warm_up.messages) + len(paced.messages):  # noqa: ASYNC110
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
    return sorted((arrived[sent.partition, sent.offset] - sent.at) / 1e6 for sent in paced.messages)


async def _insert(database: Database, rows: Sequence[EventRow]) -> float:
    # Unlike a service, this process has all rows in memory. `freeze` keeps the garbage collector from walking them.
    steps = [_step(rows[start : start + _BATCH_ROWS]) for start in range(0, len(rows), _BATCH_ROWS)]
    gc.collect()
    gc.freeze()
    began = time.perf_counter()
    for step in steps:
        await database.perform_step(step)
    rate = len(rows) / (time.perf_counter() - began)
    gc.unfreeze()
    return rate


def _step(rows: Sequence[EventRow]) -> RecordEvents:
    """Return a step that records these rows as the recorder does, but checks no lease."""
    shared: dict[SharedFields, int] = {}
    indices = [
        shared.setdefault(
            SharedFields(row.asset_id, row.timestamp, row.watcher_id, row.ordinal, 0), len(shared)
        )
        for row in rows
    ]
    extras, keys = [row.extra for row in rows], [row.idempotency_key for row in rows]
    return RecordEvents(EventRows(extras, keys, indices, list(shared)), [], "bench")


async def _insert_by_driver(url: str, rows: Sequence[EventRow]) -> float:
    """Insert and queue the events with the bare driver, in one transaction per batch; return the rows per second."""
    gc.collect()
    gc.freeze()
    try:
        if url.startswith("sqlite"):
            return await to_thread.run_sync(_insert_by_sqlite3, make_url(url).database or "", rows)
        return await _insert_by_asyncpg(url, rows)
    finally:
        gc.unfreeze()


_INSERT: Final = f"INSERT INTO asset_event ({', '.join(EventRow._fields)}) VALUES "
_QUEUE: Final = (
    "INSERT INTO queued_asset_event (dag_id, asset_event_id, asset_id) "
    "SELECT s.dag_id, e.id, e.asset_id FROM asset_event e "
    "JOIN dag_schedule_asset s ON s.asset_id = e.asset_id WHERE e.id > "
)
_HIGHEST: Final = "SELECT coalesce(max(id), 0) FROM asset_event"


def _insert_by_sqlite3(path: str, rows: Sequence[EventRow]) -> float:
    # The driver's own conversion of instants is deprecated, so pass them as text.
    ready = [row._replace(timestamp=row.timestamp.isoformat(" ")) for row in rows]  # type: ignore[arg-type]
    places = ", ".join("?" * len(EventRow._fields))
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for pragma in SQLITE_WRITER_PRAGMAS:
            connection.execute(f"PRAGMA {pragma}")
        began = time.perf_counter()
        for start in range(0, len(ready), _BATCH_ROWS):
            connection.execute("BEGIN IMMEDIATE")
            (highest,) = connection.execute(_HIGHEST).fetchone()
            connection.executemany(f"{_INSERT} ({places})", ready[start : start + _BATCH_ROWS])
            connection.execute(f"{_QUEUE} ?", (highest,))
            connection.execute("COMMIT")
        return len(rows) / (time.perf_counter() - began)


async def _insert_by_asyncpg(url: str, rows: Sequence[EventRow]) -> float:
    places = ", ".join(f"${place}" for place, _ in enumerate(EventRow._fields, 1))
    dsn = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    connection = await asyncpg.connect(dsn)
    try:
        began = time.perf_counter()
        for start in range(0, len(rows), _BATCH_ROWS):
            async with connection.transaction():
                highest = await connection.fetchval(_HIGHEST)
                await connection.executemany(
                    f"{_INSERT} ({places})", rows[start : start + _BATCH_ROWS]
                )
                await connection.execute(f"{_QUEUE} $1", highest)
        return len(rows) / (time.perf_counter() - began)
    finally:
        await connection.close()


async def _series(
    database: Database, bootstrap: str, topic: str, messages: int, *, watchers: int, each: int
) -> float:
    written = 0
    async with _consumer(bootstrap, topic) as consumer:
        records = await _first(consumer)
        began = time.perf_counter()
        while True:
            rows = [row for record in records for row in _rows(record, watchers, each, "series")]
            await database.perform_step(_step(rows))
            await consumer.commit()
            written += len(rows)
            if written == messages * each:
                return written / (time.perf_counter() - began)
            records = _flat(
                await consumer.getmany(timeout_ms=1_000, max_records=max(1, _BATCH_ROWS // each))
            )


def _flat(batches: dict[Any, list[Any]]) -> list[Any]:
    return [record for records in batches.values() for record in records]


def _rows(record: Any, watchers: int, each: int, prefix: str) -> list[EventRow]:
    """Return the rows that the service would make of a message."""
    value = orjson.loads(record.value)
    extra = orjson.dumps(
        {
            "value": value,
            "key": record.key,
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
        }
    ).decode()
    # Keys must be as long as the service's keys, which begin with the topic's id.
    key = f"{prefix:22}/{record.partition}/{record.offset}"
    if each > 1:
        matching: Sequence[int] = range(1, each + 1)
    else:
        matching = (value["w"] % watchers + 1,)
    return [EventRow(number, extra, _NOW, number, key, 0) for number in matching]


async def _seed(database: Database, assets: int) -> None:
    """Create the tables, the assets, and one DAG that is triggered by any of the assets."""
    await upgrade(database)
    async with database.transaction() as session:
        session.add(Dag(dag_id="bench", path="bench.py", updated_at=_NOW, schedule=None))
        for number in range(1, assets + 1):
            uri = f"x-bench://asset/{number}"
            session.add(Asset(id=number, name=f"asset-{number}", uri=uri, created_at=_NOW))
        await session.flush()
        for number in range(1, assets + 1):
            session.add(DagScheduleAsset(dag_id="bench", asset_id=number))
