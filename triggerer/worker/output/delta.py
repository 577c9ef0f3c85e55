"""`output.delta`: each commit carries the output's name as its transaction identifier (`txnAppId`).

Delta checks in the commit itself whether the table has a commit with this identifier. If so, Delta writes nothing.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from triggerer.errors import OutputRefused
from triggerer.worker.output.spark_errors import has_condition, mentions
from triggerer.worker.output.writing import Outcome, Writing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MODES: Final = ("append", "overwrite")
_MARKED: Final = "triggerer"
_FURTHER: Final = 16
_NO_EXTENSION: Final = "DELTA_CONFIGURE_SPARK_SESSION_WITH_EXTENSION_AND_CATALOG"
_NO_TABLE: Final = (
    "DELTA_MISSING_DELTA_TABLE",
    "DELTA_TABLE_NOT_FOUND",
    "DELTA_PATH_DOES_NOT_EXIST",
    "PATH_NOT_FOUND",
    "SCHEMA_NOT_FOUND",
    "TABLE_OR_VIEW_NOT_FOUND",
)


class DeltaTable:
    """A Delta table, which may not exist yet.

    Args:
        table: The table's name. A text with a slash is the table's path.
    """

    def __init__(self, spark: SparkSession, table: str) -> None:
        self._spark = spark
        self.name = table
        self._is_path = "/" in table
        self._in_sql = f"delta.`{table.replace('`', '``')}`" if self._is_path else table

    def exists(self) -> bool:
        try:
            return bool(self._spark.catalog.tableExists(self._in_sql))
        except Exception:  # noqa: BLE001 - Spark raises for a path without a table; other errors recur at the write
            return False

    def identity(self) -> str | None:
        """Return Delta's id of the table, whichever name the user gave. None: the table does not exist."""
        try:
            row: Any = self._spark.sql(f"DESCRIBE DETAIL {self._in_sql}").first()
        except Exception as error:
            if has_condition(error, *_NO_TABLE):
                return None
            raise
        return str(row["id"])

    def writer_of(self, name: str) -> str | None:
        """Return the mark of the call that wrote this output; None: the table's history does not have the output."""
        limit = 1
        while True:
            # Delta reads as many commits as are requested. The output's commit is usually the latest one, so first
            # request only one commit.
            rows = self._spark.sql(f"DESCRIBE HISTORY {self._in_sql} LIMIT {limit}").collect()
            for row in rows:
                words = (row["userMetadata"] or "").split()
                if words[:2] == [_MARKED, name]:
                    return str(words[2])
            if len(rows) < limit:
                return None
            limit *= _FURTHER

    def write(self, df: DataFrame, mode: str, name: str, mark: str) -> None:
        """Write the rows, unless a commit of the table has `name` as its transaction identifier."""
        writer = (
            df.write.format("delta")
            .mode(mode)
            .option("txnAppId", name)
            .option("txnVersion", 1)
            .option("userMetadata", f"{_MARKED} {name} {mark}")
        )
        try:
            if self._is_path:
                writer.save(self.name)
            else:
                writer.saveAsTable(self.name)
        except Exception as error:
            if has_condition(error, _NO_EXTENSION):
                raise OutputRefused(
                    "Spark has Delta's jar, and not its extension",
                    hint="set spark.sql.extensions to io.delta.sql.DeltaSparkSessionExtension",
                ) from error
            raise


class DeltaTables:
    """The Delta tables that one try writes to. Two names of one table count as one table."""

    def __init__(self) -> None:
        self._tables: list[DeltaTable] = []
        self._lock = Lock()

    def first_name(self, table: DeltaTable) -> str:
        """Return the name that this try first used for this table, because a table may have several names."""
        with self._lock:
            if all(table.name != known.name for known in self._tables):
                # The query for a table's identity is slow. Most tasks write to only one table, and need no query.
                own = table.identity() if self._tables else None
                for known in self._tables:
                    if own is not None and known.identity() == own:
                        return known.name
                self._tables.append(table)
            return table.name


def check_mode(mode: str) -> None:
    """Refuse a mode for which Delta does not check its transaction identifiers.

    Raises:
        OutputRefused: The mode is neither `append` nor `overwrite`.
    """
    if mode not in _MODES:
        raise OutputRefused(f"output.delta has no mode {mode!r}", hint="use append or overwrite")


def write_delta(df: DataFrame, table: DeltaTable, writing: Writing, *, mode: str) -> Outcome:
    """Write the rows in one commit, unless an earlier try has done so.

    Raises:
        OutputRefused: This attempt is no longer the run's current one.
    """
    writing.require_current()
    is_new = not table.exists()
    try:
        table.write(df, mode, writing.name, writing.mark)
    except Exception as error:
        if not mentions(error, "ConcurrentTransactionException", "DELTA_CONCURRENT_TRANSACTION"):
            raise
        # Another try committed at the same moment. In a second call, Delta finds that commit, and writes nothing.
        table.write(df, mode, writing.name, writing.mark)
    found = table.writer_of(writing.name)
    if found is None:
        # No commit in the history has the output's mark. If the table was new, this call wrote the output: Delta stores
        # no mark when it creates a table. Otherwise an earlier try wrote the output, and the history no longer lists
        # that commit.
        return "written" if is_new else "was_there"
    return writing.outcome(found, table.name)
