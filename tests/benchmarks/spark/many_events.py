"""Compares the two ways of `to_dataframe` to read a run's events: from files, and page by page.

Run with `python -m tests.benchmarks.spark.many_events --events 1000000`.

Each way is measured in one run with a new executor. The task warms up its Spark session. Then it measures the time to
create the DataFrame, to count its rows and to sum one field, and the peak memory of its process.
"""

from __future__ import annotations

import argparse
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import anyio
import orjson
import psutil

from tests.benchmarks.report import Figures, Report, Row, surroundings
from tests.executor.conftest import House, open_house
from triggerer.store.schema import migrate

_DAG: Final = """
    def peak_mb(pid="self"):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM"))

    asset = Asset("x-in")
    with DAG("reads", schedule=asset):
        @task(outlets=[Asset("x-out")])
        def read(spark, triggering_asset_events, outlet_events, dag_run):
            spark.range(10).count()
            events = triggering_asset_events[asset]
            if Path("SWITCH").exists():
                events._spool = None
            before, cpu, began = peak_mb(), time.process_time(), time.monotonic()
            frame = events.to_dataframe(spark)
            made, cpu = time.monotonic(), time.process_time() - cpu
            count = frame.count()
            counted = time.monotonic()
            total = frame.selectExpr("sum(extra.value.amount)").first()[0]
            summed = time.monotonic()
            outlet_events["x-out"].extra = {
                "make s": made - began,
                "worker's CPU s": cpu,
                "count s": counted - made,
                "sum s": summed - counted,
                "rows": count,
                "total": total,
                "worker before MB": before,
                "worker peak MB": peak_mb(),
            }
        read()
    """


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--ways", default="files,pages", help="one way, or both with a comma")
    parser.add_argument("--rounds", type=int, default=1)
    arguments = parser.parse_args()
    report = Report(None)
    report.say(f"{surroundings()}")
    with tempfile.TemporaryDirectory(prefix="triggerer-bench-") as folder:
        rows = anyio.run(
            _measure, Path(folder), arguments.events, arguments.ways.split(","), arguments.rounds
        )
    title = f"to_dataframe of {arguments.events:,} events"
    report.show(Figures("many-events", title, tuple(rows), "aims for a million: 8 s, 300 MB"))


async def _measure(folder: Path, events: int, ways: list[str], rounds: int) -> list[Row]:
    path = folder / "events.db"
    async with open_house(f"sqlite:///{path}", folder) as house:
        await migrate.upgrade(house.database)
        switch = folder / "by-pages"
        await house.add_dag("reads", _DAG.replace("SWITCH", str(switch)), needs_spark=True)
        await anyio.to_thread.run_sync(_fill, path, events)
        rows = []
        for _ in range(rounds):
            for way in ways:
                if way == "pages":
                    switch.touch()
                else:
                    switch.unlink(missing_ok=True)
                rows.append({"way": way, **await _run(house, path), "load": psutil.getloadavg()[0]})
        shutil.rmtree(house.home, ignore_errors=True)
    return rows


async def _run(house: House, path: Path) -> dict[str, Any]:
    (pk,) = await house.queue("reads", state="failed")
    await anyio.to_thread.run_sync(_give, path, pk)
    await house.change_run(pk, state="queued")
    async with house.executor(workers=1):
        (run,) = await house.ended(pk, timeout=500)
    assert run.state == "success", run.error
    *_, event = await house.events("x-out")
    return {name: round(value, 2) for name, value in event.extra.items()}


def _fill(path: Path, events: int) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            'INSERT INTO asset (id, name, uri, "group", extra, created_at)'
            " VALUES (1, 'x-in', 'x-in', 'asset', '{}', '2026-01-01 00:00:00.000000')"
        )
        connection.executemany(
            "INSERT INTO asset_event (asset_id, extra, timestamp, watcher_id, idempotency_key, ordinal)"
            " VALUES (1, ?, ?, 0, ?, 0)",
            _events(events),
        )
        connection.execute(
            "INSERT INTO queued_asset_event (dag_id, asset_event_id, asset_id)"
            " SELECT 'reads', id, 1 FROM asset_event"
        )


def _events(count: int) -> Iterator[tuple[str, str, str]]:
    for number in range(count):
        value = {"id": number, "amount": number * 0.5, "carrier": "AA"}
        extra = {
            "value": value, "key": None, "topic": "orders", "partition": number % 4, "offset": number,
            "timestamp": 1_790_000_000_000 + number,
        }  # fmt: skip
        instant = f"2026-11-22 06:00:00.{number % 1_000_000:06}"
        yield orjson.dumps(extra).decode(), instant, f"k/{number}"


def _give(path: Path, run_pk: int) -> None:
    """Give all events to a run, even if another run had them before."""
    with closing(sqlite3.connect(path, timeout=60)) as connection, connection:
        connection.execute("UPDATE queued_asset_event SET run_pk = ?", (run_pk,))


if __name__ == "__main__":
    main()
