"""The folder of `output.parquet`: on this machine, in a file system of Hadoop, or on a Spark Connect server."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote, urlsplit

from triggerer.errors import OutputRefused
from triggerer.worker.output import drafts, local_files, marks
from triggerer.worker.output.hadoop_files import HadoopFiles
from triggerer.worker.output.local_files import LocalFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class OutputFolder(Protocol):
    """A folder for Parquet files. `drafts` describes the methods."""

    identity: str
    """The folder's address, with the scheme of its file system."""

    def draft(self, name: str, mark: str) -> str: ...
    def prepare(self, name: str) -> str | None: ...
    def commit(self, name: str, mark: str) -> str: ...
    def discard(self, name: str, mark: str) -> None: ...


def folder_at(spark: SparkSession, path: str) -> OutputFolder:
    """Return the folder at this path, on the file system that the session writes to.

    Raises:
        OutputRefused: Over Spark Connect, the path is relative, or is not on the server's file system.
    """
    if hasattr(spark, "_jsparkSession"):
        return _DriverFolder(spark, path)
    return _ServerFolder(spark, path)


class _DriverFolder:
    """A folder that this process reaches directly, or through the JVM of its session."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        hadoop = HadoopFiles(spark, path)
        self.identity = hadoop.root
        # The JVM runs on this machine, so a local path of the JVM is also a local path of this process.
        self._files: drafts.Files = hadoop if hadoop.local_root is None else LocalFiles()
        self._root = hadoop.local_root or hadoop.root

    def draft(self, name: str, mark: str) -> str:
        return drafts.draft_path(self.identity, name, mark)

    def prepare(self, name: str) -> str | None:
        return drafts.prepare(self._files, self._root, name)

    def commit(self, name: str, mark: str) -> str:
        return drafts.commit(self._files, self._root, name, mark)

    def discard(self, name: str, mark: str) -> None:
        drafts.discard(self._files, self._root, name, mark)


class _ServerFolder:
    """A folder on the file system of a Connect server, which executes the functions of `drafts` in Python."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        parts = urlsplit(path)
        if parts.scheme not in ("", "file"):
            raise OutputRefused(
                f"output.parquet cannot write to {parts.scheme}: over Spark Connect",
                hint="use output.delta or output.iceberg, or run the DAG without Spark Connect",
            )
        root = unquote(parts.path) if parts.scheme else path
        if not root.startswith("/"):
            raise OutputRefused(
                f"the path {path} is relative, and the Connect server has a working folder of its own",
                hint="give output.parquet the whole path",
            )
        self._spark = spark
        self._root = root.rstrip("/") or "/"
        self.identity = f"file:{self._root}"

    def draft(self, name: str, mark: str) -> str:
        return drafts.draft_path(self.identity, name, mark)

    def prepare(self, name: str) -> str | None:
        found: str | None = self._call(drafts.prepare, name)
        return found

    def commit(self, name: str, mark: str) -> str:
        return str(self._call(drafts.commit, name, mark))

    def discard(self, name: str, mark: str) -> None:
        self._call(drafts.discard, name, mark)

    def _call(self, function: Callable[..., Any], *arguments: str) -> Any:
        """Call a function of `drafts` in a Python worker of the server. If the worker dies, Spark repeats the call."""
        from pyspark.cloudpickle import register_pickle_by_value
        from pyspark.sql.functions import udf

        for module in (marks, local_files, drafts):
            # Send the code of these modules, because triggerer need not be installed on the server.
            register_pickle_by_value(module)  # type: ignore[no-untyped-call]
        files, root = LocalFiles(), self._root

        def call(number: int) -> str:
            return json.dumps(function(files, root, *arguments))

        column = udf(call, "string").asNondeterministic()("id")
        row = self._spark.range(0, 1, 1, 1).select(column).first()
        assert row is not None
        return json.loads(row[0])
