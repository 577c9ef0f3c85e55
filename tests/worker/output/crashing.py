"""One attempt of a task that writes to each kind of target: `python -m tests.worker.output.crashing JSON`.

The attempt writes 100 rows with a token to each target. The JSON contains the token, and perhaps a point (one of
`POINTS`). At this point the attempt kills itself and its JVM.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NoReturn

from triggerer.worker.output import Output, delta, hadoop_files, iceberg, jdbc, local_files
from triggerer.worker.spark import SparkSettings, open_session

ROWS: Final = 100
POINTS: Final = (
    "parquet: while Spark writes the draft",
    "parquet: before the commit",
    "parquet: after the commit",
    "parquet: after the first move",
    "parquet: before the draft is deleted",
    "parquet: after the call",
    "delta: while Spark writes",
    "delta: after the commit",
    "iceberg: after the branch",
    "iceberg: while Spark writes the branch",
    "iceberg: before the pick",
    "iceberg: after the pick",
    "iceberg: after the call",
    "jdbc: while Spark writes the draft",
    "jdbc: before the merge",
    "jdbc: after the merge",
    "jdbc: after the call",
)


class Attempt:
    """The attempt's session, and its targets below a folder and in a database.

    Args:
        lake: A folder of an object store. If it is given, it is the only target.
    """

    def __init__(
        self, folder: Path, url: str, conf: dict[str, str], lake: str | None = None
    ) -> None:
        home = folder / "home"
        home.mkdir(exist_ok=True)
        settings = SparkSettings(master="local[2]", conf=conf)
        self.spark = open_session(settings, home=home, app_name="crashing")
        self._has_one = lake is not None
        self.parquet, self.delta = lake or str(folder / "rows"), str(folder / "delta")
        if self._has_one:
            return
        self.url = url
        self.spark.sql(
            "CREATE TABLE IF NOT EXISTS ice.db.t (id BIGINT, token STRING) USING iceberg"
        )
        database = jdbc.Connection(self.spark, url, None)
        database.execute("CREATE TABLE IF NOT EXISTS crashing (id BIGINT, token TEXT)")

    def write(self, token: str, mark: Callable[[str], None]) -> None:
        """Write all outputs, and call `mark` with a point's name after each."""
        output = Output(token, lambda: True)
        rows = self.spark.range(0, ROWS, 1, 2).selectExpr("id", f"'{token}' AS token")
        print("parquet", output.parquet(rows, self.parquet), flush=True)
        mark("parquet: after the call")
        if self._has_one:
            return
        print("delta", output.delta(rows, self.delta), flush=True)
        mark("delta: after the commit")
        print("iceberg", output.iceberg(rows, "ice.db.t"), flush=True)
        mark("iceberg: after the call")
        print("jdbc", output.jdbc(rows, self.url, "crashing", key=()), flush=True)
        mark("jdbc: after the call")

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the number of rows by target and token."""
        if self._has_one:
            return {"parquet": _count(self.spark.read.parquet(self.parquet))}
        properties = {"driver": "org.postgresql.Driver"}
        frames = {
            "parquet": self.spark.read.parquet(self.parquet),
            "delta": self.spark.read.format("delta").load(self.delta),
            "iceberg": self.spark.table("ice.db.t"),
            "jdbc": self.spark.read.jdbc(self.url, "crashing", properties=properties),
        }
        return {kind: _count(frame) for kind, frame in frames.items()}


def _count(frame: Any) -> dict[str, int]:
    return {row["token"]: row["count"] for row in frame.groupBy("token").count().collect()}


def _kill() -> NoReturn:
    """Kill the JVM, and immediately after it this process."""
    from triggerer.worker.spark.sessions.classic import jvm_process

    process = jvm_process()
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive")


def _plant(point: str | None) -> Callable[[str], None]:
    """Make the attempt kill itself at this point.

    The caller calls the returned function at each point that is not inside a writer, with the point's name.
    """

    def mark(name: str) -> None:
        if name == point:
            _kill()

    def around(owner: Any, method: str, *, before: str = "", after: str = "") -> None:
        inner = getattr(owner, method)

        def call(*args: Any, **kwargs: Any) -> Any:
            mark(before)
            result = inner(*args, **kwargs)
            mark(after)
            return result

        setattr(owner, method, call)

    def during(owner: Any, method: str, name: str) -> None:
        inner = getattr(owner, method)

        def call(*args: Any, **kwargs: Any) -> Any:
            if name == point:
                # On most machines, Spark has begun after this time, and has not finished.
                threading.Timer(0.15, _kill).start()
            result = inner(*args, **kwargs)
            if name == point:
                time.sleep(10)
            return result

        setattr(owner, method, call)

    from pyspark.sql import DataFrameWriter

    for files in (local_files.LocalFiles, hadoop_files.HadoopFiles):
        around(
            files, "create", before="parquet: before the commit", after="parquet: after the commit"
        )
        around(files, "move", after="parquet: after the first move")
        around(files, "delete", before="parquet: before the draft is deleted")
    during(DataFrameWriter, "parquet", "parquet: while Spark writes the draft")
    during(delta.DeltaTable, "write", "delta: while Spark writes")
    around(iceberg.IcebergTable, "create_branch", after="iceberg: after the branch")
    during(iceberg.IcebergTable, "append", "iceberg: while Spark writes the branch")
    around(
        iceberg.IcebergTable,
        "pick",
        before="iceberg: before the pick",
        after="iceberg: after the pick",
    )
    during(jdbc.Connection, "write", "jdbc: while Spark writes the draft")
    around(jdbc.Connection, "write", after="jdbc: before the merge")
    inner = jdbc.Connection.execute

    def execute(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = inner(self, *args, **kwargs)
        if "WITH token AS" in args[0]:
            mark("jdbc: after the merge")
        return result

    jdbc.Connection.execute = execute  # type: ignore[method-assign]
    return mark


def main() -> None:
    given = json.loads(sys.argv[1])
    mark = _plant(given["point"])
    attempt = Attempt(Path(given["folder"]), given["url"], given["conf"], given.get("lake"))
    print("open", flush=True)
    if given["token"]:
        attempt.write(given["token"], mark)
    print("done", flush=True)
    if given["count"]:
        print(json.dumps(attempt.counts()), flush=True)
    # The JVM ends with this process.
    os._exit(0)


if __name__ == "__main__":
    main()
