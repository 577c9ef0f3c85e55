"""`output.delta`: each commit has one of Delta's transaction identifiers, which Delta checks in the commit itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from triggerer.errors import OutputRefused
from triggerer.worker.output.spark_errors import has_condition, mentions
from triggerer.worker.output.writing import Names, Outcome, Writing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MODES: Final = ("append", "overwrite")
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

    def identity(self) -> str | None:
        """Return Delta's id of the table, whichever name the user gave. None: the table does not exist."""
        try:
            row: Any = self._spark.sql(f"DESCRIBE DETAIL {self._in_sql}").first()
        except Exception as error:
            if has_condition(error, *_NO_TABLE):
                return None
            if has_condition(error, "PARSE_SYNTAX_ERROR"):
                raise OutputRefused(
                    "Spark cannot read Delta's statements",
                    hint="set spark.sql.extensions to io.delta.sql.DeltaSparkSessionExtension",
                ) from error
            raise
        if row["format"] != "delta":
            raise OutputRefused(f"{self.name} is a table of the format {row['format']}, not Delta")
        return str(row["id"])

    def version(self) -> int:
        """Return the table's latest version."""
        (latest,) = self._history(1)
        return int(latest["version"])

    def was_written(self, mark: str, *, after: int) -> bool:
        """Return whether a version later than `after` has the mark."""
        (latest,) = self._history(1)
        newer = int(latest["version"]) - after
        if newer <= 1:
            return newer == 1 and latest["userMetadata"] == mark
        return any(row["userMetadata"] == mark for row in self._history(newer))

    def _history(self, limit: int) -> list[Any]:
        """Return the latest versions, newest first. Without a limit, Delta would read its whole log."""
        return self._spark.sql(f"DESCRIBE HISTORY {self._in_sql} LIMIT {limit}").collect()

    def write(self, df: DataFrame, mode: str, name: str, mark: str) -> None:
        """Write the rows, unless a commit of the table has this name."""
        writer = (
            df.write.format("delta")
            .mode(mode)
            .option("txnAppId", name)
            .option("txnVersion", 1)
            .option("userMetadata", mark)
        )
        if self._is_path:
            writer.save(self.name)
        else:
            writer.saveAsTable(self.name)


def check_mode(mode: str) -> None:
    """Refuse a mode in which Delta does not check its transaction identifiers.

    Raises:
        OutputRefused: The mode is neither `append` nor `overwrite`.
    """
    if mode not in _MODES:
        raise OutputRefused(f"output.delta has no mode {mode!r}", hint="use append or overwrite")


def open_target(table: DeltaTable) -> str:
    """Return the table's id, or its name while it does not exist. The calls of a try are counted by this identity."""
    return table.identity() or table.name


def write_delta(
    df: DataFrame, table: DeltaTable, target: str, names: Names, writing: Writing, *, mode: str
) -> Outcome:
    """Write the rows in one commit, unless an earlier try has.

    Args:
        target: The result of `open_target`.
    Raises:
        OutputRefused: This attempt is no longer the run's current one.
    """
    writing.require_current()
    is_new = target == table.name
    before = -1 if is_new else table.version()
    mark = f"triggerer {writing.name} {writing.mark}"
    try:
        table.write(df, mode, writing.name, mark)
    except Exception as error:
        if not mentions(error, "ConcurrentTransactionException", "DELTA_CONCURRENT_TRANSACTION"):
            raise
        # Another try committed at the same moment. The second write finds that commit.
        table.write(df, mode, writing.name, mark)
    if is_new:
        # Delta stores no mark in a commit that creates a table by name.
        names.identify(("delta", target), ("delta", open_target(table)))
        return "written"
    return "written" if table.was_written(mark, after=before) else "was_there"
