"""`output.jdbc`: Spark writes a draft table, and one statement moves its rows, together with a row for the token.

Statements reach the database through Spark's option `sessionInitStatement`, which Spark's own connection executes. So
they need no driver but the one that writes the rows, and work over Connect as in a classic session.
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
    """The database behind a URL, as Spark's JDBC source reaches it.

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
            # The draft has the types of the target, and PostgreSQL reads a text as whatever the column is.
            "stringtype": "unspecified",
            **(properties or {}),
            "url": url,
        }

    def execute(self, statement: str, *, then: str = "SELECT 1") -> Sequence[Any]:
        """Execute a statement, which commits at once, and return the rows of a query after it."""
        reader = self._spark.read.format("jdbc").options(**self._options)
        # With a fetch size, Spark switches the automatic commit off.
        reader = reader.option("fetchsize", 0).option("sessionInitStatement", statement)
        return reader.option("query", then).load().collect()

    def columns(self, table: str) -> list[str]:
        """Return the names of a table's columns."""
        query = f"SELECT * FROM {table} WHERE 1 = 0"
        reader = self._spark.read.format("jdbc").options(**self._options)
        return reader.option("query", query).load().columns

    def write(self, df: DataFrame, table: str) -> None:
        """Add rows to a table, in a transaction for each partition."""
        writer = df.write.format("jdbc").mode("append").options(**self._options)
        writer.option("dbtable", table).save()


def write_jdbc(
    df: DataFrame, connection: Connection, table: str, writing: Writing, *, key: Sequence[str]
) -> Outcome:
    """Write the rows in one transaction, unless an earlier try has. A row replaces the one with the same key.

    Args:
        key: The columns of a unique constraint; empty: every row is a new one.
    Raises:
        OutputRefused: This attempt is a former one, or the rows do not fit the table.
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
            # The token's row decides. A former attempt that gets past this is stopped by that row.
            writing.require_current()
            with _explained(table, keys):
                rows = connection.execute(output.merge(columns, keys), then=output.look())
        finally:
            connection.execute(output.drop_draft())
    return writing.outcome(rows[0][0], table)


def _matching(wanted: Sequence[str], known: Sequence[str], where: str) -> list[str]:
    """Return the names as they are known, which may differ in case.

    Raises:
        OutputRefused: A name is not known.
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
    """Turn the database's refusals of the last statement into a sentence."""
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
