"""Fills a real store with 2,000 DAGs, 10,000 watchers and a million events, and runs a service on it."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from tests.services.databases.copied_store import copy_store
from tests.services.sample_service import SampleService, open_sample_service

DAGS: Final = 2_000
EVENTS: Final = 1_000_000
EVENTS_PER_RUN: Final = 10
_STREAMS: Final = 40
_PER_FILE: Final = 10
_PARKED: Final = 2_000
_SHOP: Final = '''
"""DAGs of a shop: each loads the orders of one branch, which five watchers find."""

import asyncio

from triggerer import DAG, Asset, AssetWatcher, BaseEventTrigger, SharedStreamProducer, TriggerEvent, task


class Quiet(SharedStreamProducer):
    async def open_stream(self):
        await asyncio.Event().wait()
        yield None, None

    async def advance(self, batch):
        pass

    def get_idempotency_key(self, payload):
        return str(payload)


class Orders(BaseEventTrigger):
    def __init__(self, topic, country):
        self.topic, self.country = topic, country

    def serialize(self):
        path = f"{type(self).__module__}.{type(self).__qualname__}"
        return path, {"topic": self.topic, "country": self.country}

    def shared_stream_key(self):
        return ("orders", self.topic)

    @classmethod
    def create_shared_stream_producer(cls, kwargs):
        return Quiet()

    async def filter_shared_stream(self, shared_stream):
        async for event in shared_stream:
            yield TriggerEvent(event)


def dag(number):
    topic = f"topic-{number % STREAMS}"
    watchers = [AssetWatcher(f"country_{n}", Orders(topic, f"{number}-{n}")) for n in range(5)]
    orders = Asset(f"x-shop://orders/{number}", name=f"orders_{number:04}", watchers=watchers)
    lake = Asset(f"file:///lake/orders/{number}", name=f"lake_{number:04}")
    with DAG(f"load_orders_{number:04}", schedule=[orders], tags=["orders", f"team-{number % 12}"]) as made:

        @task(outlets=[lake])
        def load():
            pass

        @task
        def check():
            pass

        load() >> check()
    return made
'''


def dag_files() -> dict[str, str]:
    """Return the texts of the DAG files by file name."""
    files = {"shop.py": _SHOP.replace("STREAMS", str(_STREAMS))}
    for first in range(0, DAGS, _PER_FILE):
        numbers = f"range({first}, {first + _PER_FILE})"
        files[f"branch_{first:04}.py"] = (
            f"from shop import dag\n\ndags = [dag(n) for n in {numbers}]\n"
        )
    return files


@contextmanager
def open_big_service(folder: Path, url: str | None = None) -> Iterator[SampleService]:
    """Yield a service on a large store.

    First another service reads all DAG files into a SQLite store, and `fill` adds the other rows.

    Args:
        url: A PostgreSQL database into which the store is copied. None: the yielded service uses the SQLite store.
    """
    with open_sample_service(folder, dags=dag_files(), capacity=20_000):
        _wait_for_dags(folder / "service.log")
    path = folder / "home" / "triggerer.db"
    fill(path)
    settings = ""
    if url is not None:
        copy_store(path, url)
        settings = f'[database]\nurl = "{url}"\n'
    with open_sample_service(
        folder, dags=dag_files(), settings=settings, capacity=20_000
    ) as service:
        yield service


def _wait_for_dags(log: Path) -> None:
    deadline = time.monotonic() + 300
    while True:
        lines = (json.loads(line) for line in log.read_text().splitlines() if line[:1] == "{")
        if sum(one["dags"] for one in lines if one["event"] == "DAG files stored") >= DAGS:
            return
        if time.monotonic() > deadline:
            raise RuntimeError("not all DAG files were stored in time")
        time.sleep(1)  # the service reads the files in another process


def fill(path: Path) -> None:
    """Add events, the runs that took them, and parked messages. No service may use the store meanwhile."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA synchronous = OFF")
        assets = connection.execute(
            "SELECT w.asset_id, min(w.id), s.dag_id FROM watcher w"
            " JOIN dag_schedule_asset s ON s.asset_id = w.asset_id GROUP BY w.asset_id ORDER BY w.asset_id"
        ).fetchall()
        assert len(assets) == DAGS
        _fill_events(connection, assets)
        _fill_runs(connection, assets)
        _fill_parked(connection)
        connection.execute("ANALYZE")


def _at(number: int, count: int) -> str:
    """Return the instant of row `number`, as SQLite stores it. The `count` rows are spread over the last 24 hours."""
    at = datetime.now(UTC) - timedelta(days=1) * (count - number) / count
    return at.strftime("%Y-%m-%d %H:%M:%S.%f")


def _fill_events(connection: sqlite3.Connection, assets: list[tuple[int, int, str]]) -> None:
    def rows() -> Iterator[tuple[object, ...]]:
        for number in range(EVENTS):
            asset, watcher, _ = assets[number // EVENTS_PER_RUN % DAGS]
            value = {"id": number, "amount": number % 997 / 4, "carrier": "AA"}
            extra = {
                "value": value,
                "key": None,
                "topic": "orders",
                "partition": number % 8,
                "offset": number,
            }
            yield (
                number + 1,
                asset,
                json.dumps(extra),
                _at(number, EVENTS),
                watcher,
                f"orders/{number}",
            )

    connection.executemany(
        "INSERT INTO asset_event (id, asset_id, extra, timestamp, watcher_id, idempotency_key, ordinal)"
        " VALUES (?, ?, ?, ?, ?, ?, 0)",
        rows(),
    )


def _fill_runs(connection: sqlite3.Connection, assets: list[tuple[int, int, str]]) -> None:
    runs = EVENTS // EVENTS_PER_RUN
    error = "task check failed: ValueError: the report has no rows"
    states = [(n, "failed" if n % 97 == 0 else "success", _at(n, runs)) for n in range(runs)]
    connection.executemany(
        "INSERT INTO dag_run (id, dag_id, run_id, run_type, state, error, run_after, params, queued_at, started_at,"
        " first_started_at, ended_at, attempt, cancel_requested)"
        " VALUES (?1, ?2, ?3, 'asset_triggered', ?4, ?5, ?6, '{}', ?6, ?6, ?6, ?6, 1, 0)",
        (
            (
                n + 1,
                assets[n % DAGS][2],
                f"asset_triggered__{n}",
                state,
                error if state == "failed" else None,
                at,
            )
            for n, state, at in states
        ),
    )
    connection.executemany(
        "INSERT INTO task_run (run_pk, task_id, state, try_number, started_at, ended_at)"
        " VALUES (?1, ?2, ?3, 1, ?4, ?4)",
        (
            (n + 1, task, state if task == "check" else "success", at)
            for n, state, at in states
            for task in ("load", "check")
        ),
    )
    connection.execute(
        "INSERT INTO queued_asset_event (dag_id, asset_event_id, asset_id, run_pk)"
        " SELECT s.dag_id, e.id, e.asset_id, (e.id - 1) / ? + 1 FROM asset_event e"
        " JOIN dag_schedule_asset s ON s.asset_id = e.asset_id",
        (EVENTS_PER_RUN,),
    )


def _fill_parked(connection: sqlite3.Connection) -> None:
    streams = [one for (one,) in connection.execute("SELECT digest FROM stream ORDER BY digest")]
    connection.executemany(
        "INSERT INTO parked_body (id, stream_digest, idempotency_key, data, size_bytes) VALUES (?, ?, ?, ?, 20)",
        (
            (n + 1, streams[n % len(streams)], f"bad/{n}", b'{"value": "broken"}')
            for n in range(_PARKED)
        ),
    )
    connection.executemany(
        "INSERT INTO parked_message (id, watcher_id, body_id, lane, idempotency_key, state, failures, error, parked_at)"
        " VALUES (?, ?, ?, '0', ?, 'set_aside', 3, ?, ?)",
        (
            (
                n + 1,
                n % 10_000 + 1,
                n + 1,
                f"bad/{n}",
                f"ValueError: no amount in {n % 7}",
                _at(n, _PARKED),
            )
            for n in range(_PARKED)
        ),
    )


class StoredNames:
    """The names of one DAG, run, asset and stream of the store, for `tests.page.browsing.screens`."""

    def __init__(self, path: Path) -> None:
        with closing(sqlite3.connect(path)) as connection:
            self._run = connection.execute(
                "SELECT dag_id, run_id FROM dag_run ORDER BY id DESC LIMIT 1"
            ).fetchone()
            self._asset = connection.execute(
                "SELECT name FROM asset ORDER BY id LIMIT 1"
            ).fetchone()
            self._stream = connection.execute("SELECT digest FROM stream LIMIT 1").fetchone()

    def dag_id(self, _: int) -> str:
        return str(self._run[0])

    def run_id(self, _: int) -> str:
        return str(self._run[1])

    def asset_name(self, _: int) -> str:
        return str(self._asset[0])

    def stream_id(self, _: int) -> str:
        return str(self._stream[0])
