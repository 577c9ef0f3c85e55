"""Measures the store alone: the recorder's group commits, raw bulk inserts, and the commit of one event."""

from __future__ import annotations

import gc
import statistics
from typing import Final

import anyio

from tests.benchmarks import store_bench
from tests.benchmarks.report import Figures, Row, percentile
from tests.benchmarks.scene import Scene, Store
from triggerer.store.database.opening import open_database

_NOTE: Final = (
    "rows/s of asset events that queue for one DAG; `raw COPY`: into an unlogged table without an index. "
    "One event: from submission to confirmation, at about 100/s."
)


def measure(scene: Scene) -> Figures:
    rows = tuple(
        anyio.run(
            _measure,
            store,
            scene.new_database(store),
            2_000 if scene.quick else 200_000,
            backend_options={"use_uvloop": True},
        )
        for store in scene.stores
    )
    return Figures("store", "Store: rows per second, and one event's commit", rows, _NOTE)


async def _measure(store: Store, url: str, rows: int) -> Row:
    async with open_database(url) as database:
        await store_bench.seed(database)
        recorded, flushes = await store_bench.record_rows(database, rows)
        gc.unfreeze()
        raw = await store_bench.insert_rows(database, rows, 5_000)
        copied = await store_bench.copy_rows(url, rows) if store == "postgresql" else float("nan")
        took = sorted(await store_bench.commit_latencies(database, 200, rows))
    return {
        "store": store,
        "recorder rows/s": recorded,
        "flushes": flushes,
        "raw bulk rows/s": raw,
        "recorder / raw": recorded / raw,
        "raw COPY rows/s": copied,
        "one event p50 ms": statistics.median(took),
        "p99 ms": percentile(took, 99),
    }
