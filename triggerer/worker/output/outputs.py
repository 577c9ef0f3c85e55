"""The argument `output` of a task."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from triggerer.errors import OutputRefused
from triggerer.worker.output import delta as delta_tables
from triggerer.worker.output import iceberg as iceberg_tables
from triggerer.worker.output import jdbc as jdbc_tables
from triggerer.worker.output.folders import folder_at
from triggerer.worker.output.marks import new_mark, new_try
from triggerer.worker.output.parquet import write_parquet
from triggerer.worker.output.writing import Names, Outcome, Writing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Output:
    """Writes the data of a task once, however often its run is attempted. A cleared task writes its data again.

    Each writer returns `written`, or `was_there` if an earlier try of the task has written this output:

    - A writer does not compare rows. If a retry has other rows, the rows of the earlier try stay.
    - A second call for one target is another output. So all tries must make the calls for a target in the same order.

    Args:
        token: The output's identity, see `triggerer.domain.outputs`.
        may_commit: Asks the service whether this attempt is still the run's current one.
    """

    def __init__(self, token: str, may_commit: Callable[[], bool]) -> None:
        self.token = token
        """The identity as text, equal in every attempt until somebody clears the task."""
        self._may_commit = may_commit
        self._try = new_try()
        self._calls = itertools.count(1)
        self._names = Names(token)
        self._delta_tables = delta_tables.DeltaTables()

    def __repr__(self) -> str:
        return f"Output({self.token!r})"

    def parquet(
        self, df: DataFrame, path: str, *, partition_by: Sequence[str] | str = ()
    ) -> Outcome:
        """Add the rows to a folder of Parquet files.

        Args:
            path: The folder, as in `df.write.parquet`.
            partition_by: Columns whose values become folders.
        Raises:
            OutputRefused: This attempt is no longer the run's current one, or the Spark Connect server cannot reach the
                path.
        """
        folder = folder_at(_session(df, "parquet"), str(path))
        writing = self._begin("parquet", folder.identity)
        return write_parquet(df, folder, writing, partition_by=_names(partition_by))

    def delta(self, df: DataFrame, table: str, *, mode: str = "append") -> Outcome:
        """Write the rows to a Delta table. The table is created if it does not exist.

        Args:
            table: The table's name. A text with a slash is the table's path.
            mode: `append` or `overwrite`.
        Raises:
            OutputRefused: This attempt is no longer the run's current one, or Spark lacks Delta's extension.
        """
        delta_tables.check_mode(mode)
        found = delta_tables.DeltaTable(_session(df, "delta"), str(table))
        writing = self._begin("delta", self._delta_tables.first_name(found))
        return delta_tables.write_delta(df, found, writing, mode=mode)

    def iceberg(self, df: DataFrame, table: str) -> Outcome:
        """Append the rows to an Iceberg table, which must exist.

        Raises:
            OutputRefused: This attempt is no longer the run's current one.
        """
        found = iceberg_tables.IcebergTable(_session(df, "iceberg"), table)
        writing = self._begin("iceberg", table.lower())
        return iceberg_tables.write_iceberg(df, found, writing)

    def jdbc(
        self,
        df: DataFrame,
        url: str,
        table: str,
        *,
        key: Sequence[str] | str,
        properties: Mapping[str, str] | None = None,
    ) -> Outcome:
        """Write the rows to a table of a database, in one transaction.

        Args:
            url: The URL of the database, as in `df.write.jdbc`.
            table: The table's name as in SQL. The table must exist. The rows are first written into a new table, so the
                user of the database must be allowed to create tables in the schema.
            key: The columns of a unique constraint. A row replaces the row with the same key. `()`: all rows are added.
            properties: Properties of the connection, such as `user` and `password`.
        Raises:
            OutputRefused: This attempt is no longer the run's current one, `output.jdbc` does not know the database, or
                the rows do not fit the table.
        """
        connection = jdbc_tables.Connection(_session(df, "jdbc"), url, properties)
        writing = self._begin("jdbc", (url, table))
        return jdbc_tables.write_jdbc(df, connection, table, writing, key=_names(key))

    def _begin(self, kind: str, target: Any) -> Writing:
        name = self._names.next((kind, target))
        return Writing(name, new_mark(self._try, next(self._calls)), self._may_commit)


def _session(df: Any, writer: str) -> Any:
    """Return the DataFrame's session.

    Raises:
        OutputRefused: `df` is no Spark DataFrame.
    """
    session = getattr(df, "sparkSession", None)
    if session is None:
        raise OutputRefused(
            f"output.{writer} takes a Spark DataFrame, not a {type(df).__name__}",
            hint="spark.createDataFrame makes one",
        )
    return session


def _names(given: Sequence[str] | str) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)
