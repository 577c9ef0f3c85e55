"""`output.jdbc`: Spark writes a draft table. Then one statement stores the token and moves the draft's rows.

Spark's own connection executes the statements, as its option `sessionInitStatement`. So the statements use the driver
that writes the rows, and work in classic sessions and over Connect.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from triggerer.errors import OutputRefused
from triggerer.worker.output import postgresql
from triggerer.worker.output.spark_errors import mentions
from triggerer.worker.output.writing import Outcome, Writing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Connection:
    """The connection of Spark's JDBC source to the database of a URL.

    Raises:
        OutputRefused: The database is not PostgreSQL.
    """

    def __init__(self, spark: SparkSession, url: str, properties: Mapping[str, str] | None) -> None:
        if not url.startswith("jdbc:postgresql:"):
            kind = ":".join(url.split(":")[:2])
            raise OutputRefused(
                f"output.jdbc writes to PostgreSQL, and knows no statement for {kind}",
                hint="write with Spark, and store output.token in the same transaction as the rows",
            )
        self._spark = spark
        self._options = {
            "driver": "org.postgresql.Driver",
            # PostgreSQL converts a text to the type of the draft's column, which is the type of the target's column.
            "stringtype": "unspecified",
            **(properties or {}),
            "url": url,
        }

    def execute(self, statement: str, *, then: str = "SELECT 1") -> Sequence[Any]:
        """Execute and commit a statement. Then execute the query `then`, and return its rows."""
        reader = self._spark.read.format("jdbc").options(**self._options)
        # With a fetch size, Spark would switch the automatic commit off.
        reader = reader.option("fetchsize", 0).option("sessionInitStatement", statement)
        return reader.option("query", then).load().collect()

    def columns(self, table: str) -> list[str]:
        """Return the names of a table's columns."""
        query = f"SELECT * FROM {table} WHERE 1 = 0"
        reader = self._spark.read.format("jdbc").options(**self._options)
        return reader.option("query", query).load().columns

    def write(self, df: DataFrame, table: str) -> None:
        """Add rows to a table. Each partition of the frame is a transaction."""
        writer = df.write.format("jdbc").mode("append").options(**self._options)
        writer.option("dbtable", table).save()


def write_jdbc(
    df: DataFrame, connection: Connection, table: str, writing: Writing, *, key: Sequence[str]
) -> Outcome:
    """Write the rows in one transaction, unless an earlier try has done so. A row replaces the row with the same key.

    Args:
        key: The columns of a unique constraint. Empty: the rows are added.
    Raises:
        OutputRefused: This attempt is no longer the run's current one, or the rows do not fit the table.
    """
    writing.require_current()
    columns = _matching(df.columns, connection.columns(table), table)
    keys = _matching(key, columns, f"the rows for {table}")
    output = postgresql.Output(table, writing.name, writing.mark)
    connection.execute(output.prepare())
    rows = connection.execute("SELECT 1", then=output.look())
    if not rows:
        connection.execute(output.create_draft(columns))
        try:
            connection.write(df.toDF(*columns), output.draft)
            # This question only saves work. If a former attempt passes here, the unique row of the token stops it.
            writing.require_current()
            with _explained(table, keys):
                rows = connection.execute(output.merge(columns, keys), then=output.look())
        finally:
            connection.execute(output.drop_draft())
    return writing.outcome(rows[0][0], table)


def _matching(wanted: Sequence[str], known: Sequence[str], where: str) -> list[str]:
    """Return the wanted names in the spelling of the known ones, which may differ in upper and lower case.

    Raises:
        OutputRefused: A wanted name is not known.
    """
    by_lower = {name.lower(): name for name in known}
    found = []
    for name in wanted:
        match = name if name in known else by_lower.get(name.lower())
        if match is None:
            raise OutputRefused(
                f"{where} has no column {name!r}", hint=f"it has {', '.join(known)}"
            )
        found.append(match)
    return found


@contextmanager
def _explained(table: str, key: Sequence[str]) -> Iterator[None]:
    """During the block, turn known errors of the database into a sentence with advice."""
    try:
        yield
    except Exception as error:
        named = ", ".join(key)
        if mentions(error, "no unique or exclusion constraint matching the ON CONFLICT"):
            raise OutputRefused(
                f"{table} has no unique constraint on ({named})",
                hint="create one, or give output.jdbc the columns of the one that there is as key",
            ) from error
        if mentions(error, "cannot affect row a second time"):
            raise OutputRefused(
                f"two of the rows for {table} have the same ({named})",
                hint="keep one row for each key, for instance with dropDuplicates",
            ) from error
        raise
