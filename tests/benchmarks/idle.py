"""What `triggerer standalone` costs while nothing happens, and how soon its first watcher runs."""

from __future__ import annotations

import sqlite3
import time
from typing import Final

from tests.acceptance.records import Records
from tests.benchmarks.dags import that_does_nothing
from tests.benchmarks.report import Figures, Row, percentile
from tests.benchmarks.scene import Scene, Store
from tests.benchmarks.service import Service

_NOTE: Final = (
    "aims: at most 4 processes and 250 MiB (PSS) without Spark, under 1 transaction/s, first watcher "
    "running in under 3 s. Transactions: PostgreSQL's own count for the database; on SQLite the "
    "write transactions (data_version). CPU: of one core."
)
_STARTS: Final = 5


def measure(scene: Scene) -> Figures:
    rows = tuple(_measure(scene, store) for store in scene.stores)
    return Figures("idle", "Idle: one Kafka watcher, one DAG without Spark", rows, _NOTE)


def _measure(scene: Scene, store: Store) -> Row:
    topic = scene.new_topic()
    fresh, again = [], []
    seconds = 5.0 if scene.quick else 60.0
    row: Row = {}
    for number in range(1 if scene.quick else _STARTS):
        url = scene.new_database(store)
        dag_file = that_does_nothing(topic, f"{topic}-{number}")
        with scene.service(dag_file, store, url=url) as service:
            service.start("none")
            fresh.append(service.wait_for_watchers(1, every_s=0.05))
            if not row:
                time.sleep(1.0 if scene.quick else 10.0)
                row = _watch(scene, store, service, url, seconds)
            service.stop()
            service.start("none")
            again.append(service.wait_for_watchers(1, every_s=0.05))
            service.stop()
    return {
        "store": store,
        **row,
        "start → running s (median)": percentile(sorted(fresh), 50),
        "worst": max(fresh),
        "restart s (median)": percentile(sorted(again), 50),
    }


def _watch(scene: Scene, store: Store, service: Service, url: str, seconds: float) -> Row:
    scene.report.say(f"{store}: watching {seconds:g} s of idleness")
    transactions = _Transactions(scene, store, url)
    cpu, began, before = service.cpu_seconds(), time.monotonic(), transactions.count()
    transactions.follow(seconds)
    took = time.monotonic() - began
    written = transactions.count() - before
    cpu = service.cpu_seconds() - cpu
    family = service.family()
    return {
        "processes": len(family),
        "PSS MiB": sum(process.memory_full_info().pss for process in family) / 2**20,
        "CPU %": cpu / took * 100,
        "transactions/s": written / took,
    }


class _Transactions:
    """Counts the service's transactions, without adding any. On SQLite it sees only transactions that write."""

    def __init__(self, scene: Scene, store: Store, url: str) -> None:
        self._changes = 0
        self._name = url.rpartition("/")[2]
        self._sqlite = None
        if store == "sqlite":
            path = url.split("///", 1)[1]
            self._sqlite = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        else:
            # Query from another database, because PostgreSQL counts transactions by database.
            self._records = Records(scene.postgres.url())

    def follow(self, seconds: float) -> None:
        """Wait. On SQLite, look every 20 ms for a new commit, and count it."""
        if self._sqlite is None:
            time.sleep(seconds)
            return
        deadline = time.monotonic() + seconds
        seen = self._version()
        while time.monotonic() < deadline:
            time.sleep(0.02)
            if (now := self._version()) != seen:
                seen = now
                self._changes += 1

    def _version(self) -> int:
        assert self._sqlite is not None
        return int(self._sqlite.execute("PRAGMA data_version").fetchone()[0])

    def count(self) -> int:
        if self._sqlite is not None:
            return self._changes
        return int(
            self._records.value(
                "SELECT xact_commit + xact_rollback FROM pg_stat_database"
                f" WHERE datname = '{self._name}'"
            )
        )
