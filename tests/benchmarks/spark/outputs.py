"""Compares a write with `output` and a bare write of Spark.

Run with `python -m tests.benchmarks.spark.outputs [--rounds N] [--only delta]`.

One warm local session writes 1,000 rows to an existing table, alternately bare and with `output`. `--calls` profiles
the Python functions of one write with `output`.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import secrets
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.services.clusters.spark_jars import find_spark_jars
from tests.services.databases.postgres import open_postgres
from tests.services.storage.s3 import open_s3
from triggerer.worker.output import Output
from triggerer.worker.output.jdbc import Connection
from triggerer.worker.spark import SparkSettings, close_session, open_session

_ROWS: Final = 1000
_WARM: Final = 2


@dataclass(frozen=True)
class Target:
    """A table or folder, with its two ways of writing: bare, and with `output`."""

    kind: str
    bare: Callable[[], Any]
    output: Callable[[Output], Any]

    def write(self) -> None:
        self.output(Output(secrets.token_hex(16), lambda: True))


def _targets(spark: Any, folder: Path, postgres: str) -> list[Target]:
    rows = spark.range(0, _ROWS, 1, 2)
    local, remote, delta = str(folder / "rows"), "s3a://lake/rows", str(folder / "delta")
    spark.sql("CREATE TABLE ice.db.t (id BIGINT) USING iceberg")
    for url in (postgres, derby := "jdbc:derby:memory:bench;create=true"):
        Connection(spark, url, None).execute("CREATE TABLE t (id BIGINT)")

    def append() -> Any:
        return rows.write.mode("append")

    def jdbc(url: str, **options: str) -> Any:
        return append().format("jdbc").options(url=url, dbtable="t", **options).save()

    return [
        Target("parquet", lambda: append().parquet(local), lambda o: o.parquet(rows, local)),
        Target("parquet, S3", lambda: append().parquet(remote), lambda o: o.parquet(rows, remote)),
        Target(
            "delta", lambda: append().format("delta").save(delta), lambda o: o.delta(rows, delta)
        ),
        Target(
            "iceberg",
            lambda: rows.writeTo("ice.db.t").append(),
            lambda o: o.iceberg(rows, "ice.db.t"),
        ),
        Target(
            "jdbc, PostgreSQL",
            lambda: jdbc(postgres, driver="org.postgresql.Driver"),
            lambda o: o.jdbc(rows, postgres, "t", key=()),
        ),
        Target("jdbc, Derby", lambda: jdbc(derby), lambda o: o.jdbc(rows, derby, "t", key=())),
    ]


def _seconds(work: Callable[[], Any]) -> float:
    begun = time.monotonic()
    work()
    return time.monotonic() - begun


def _measure(targets: list[Target], rounds: int) -> None:
    print("| writer | bare s | output s | difference s | load |\n|---|--:|--:|--:|--:|")
    for target in targets:
        pairs = [(_seconds(target.bare), _seconds(target.write)) for _ in range(_WARM + rounds)]
        bare, ours = map(statistics.median, zip(*pairs[_WARM:], strict=True))
        difference, load = ours - bare, os.getloadavg()[0]
        row = f"{bare:.2f} | {ours:.2f} | {difference:.2f} | {load:.1f}"
        print(f"| {target.kind} | {row} |", flush=True)


def _show_calls(targets: list[Target]) -> None:
    for target in targets:
        for _ in range(_WARM):
            target.write()
        profile = cProfile.Profile()
        profile.runcall(target.write)
        print(f"\n{target.kind}")
        pstats.Stats(profile).sort_stats("cumulative").print_stats("worker/output", 15)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", action="store_true")
    parser.add_argument("--only", default="", help="writers whose name contains this")
    given = parser.parse_args()
    jars = find_spark_jars()
    with (
        tempfile.TemporaryDirectory() as scratch,
        open_postgres() as postgres,
        open_s3("lake") as s3,
    ):
        folder = Path(scratch)
        own, of_s3 = jars.conf(("delta", "iceberg", "jdbc"), folder / "ice"), s3.conf()
        conf = own | of_s3 | {"spark.jars": f"{own['spark.jars']},{of_s3['spark.jars']}"}
        # Fewer parts than Spark's 200 and Delta's 50, which would slow down Delta's own small computations.
        conf |= {
            "spark.sql.shuffle.partitions": "2",
            "spark.databricks.delta.snapshotPartitions": "2",
        }
        settings = SparkSettings(master="local[2]", conf=conf)
        spark = open_session(settings, home=folder / "home", app_name="outputs")
        try:
            url = f"jdbc:postgresql://127.0.0.1:{postgres.port}/postgres?user=postgres"
            targets = [one for one in _targets(spark, folder, url) if given.only in one.kind]
            if given.calls:
                _show_calls(targets)
            else:
                _measure(targets, given.rounds)
        finally:
            close_session(spark)


if __name__ == "__main__":
    main()
