"""`output.jdbc`: Spark writes a draft table, and a commit moves the draft's rows to the target.

The same transaction stores the output's token, so that a later try of the task sees that the rows are there.

Spark's JDBC source receives our statements, such as the commit, in its option `sessionInitStatement`, and executes
them. So the statements need no other database driver, and work in classic sessions and over Connect.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from triggerer.errors import OutputRefused
from triggerer.worker.output.dialects import dialect_of
from triggerer.worker.output.spark_errors import mentions
from triggerer.worker.output.statements import Statements
from triggerer.worker.output.writing import Outcome, Writing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger("triggerer.run")

_NO_CONSTRAINT: Final = (
    # The errors of PostgreSQL and of SQLite.
    "no unique or exclusion constraint matching the ON CONFLICT",
    "ON CONFLICT clause does not match any PRIMARY KEY or UNIQUE constraint",
)
_COLLISION: Final = "Subquery returns more than 1 row"
"""The error of MySQL and MariaDB for a row that collides with a stored row of another key; see `dialects`."""


class Connection:
    """The connection of Spark's JDBC source to the database of a URL.

    Raises:
        OutputRefused: The database is not one of `dialects`.
    """

    def __init__(self, spark: SparkSession, url: str, properties: Mapping[str, str] | None) -> None:
        self.dialect = dialect_of(url)
        self.url = url
        self._spark = spark
        self._options = {**self.dialect.options, **(properties or {}), "url": url}
        if self.dialect.driver is not None:
            self._options.setdefault("driver", self.dialect.driver)

    def execute(self, statement: str, *, then: str | None = None) -> Sequence[Any]:
        """Execute a statement, which commits at once. Then execute the query `then`, and return its rows."""
        return self._read(then or self.dialect.nothing, sessionInitStatement=statement).collect()

    def query(self, query: str) -> Sequence[Any]:
        """Return the rows of a query."""
        return self._read(query).collect()

    def columns(self, table: str) -> list[str]:
        """Return the names of a table's columns."""
        return self._read(f"SELECT * FROM {table} WHERE 1 = 0").columns

    def write(self, df: DataFrame, table: str) -> None:
        """Add rows to a table. Each partition of the DataFrame is a transaction."""
        writer = df.write.format("jdbc").mode("append").options(**self._options)
        writer.option("dbtable", table).save()

    def _read(self, query: str, **options: str) -> DataFrame:
        reader = self._spark.read.format("jdbc").options(**{**self._options, **options})
        # With a fetch size, Spark would switch off auto-commit, and the statement of `execute` would not commit. Spark
        # cannot read a query in parts, so use one partition.
        return reader.options(fetchsize=0, numPartitions=1).option("query", query).load()


def write_jdbc(
    df: DataFrame, connection: Connection, table: str, writing: Writing, *, key: Sequence[str]
) -> Outcome:
    """Write the rows in one transaction, unless an earlier try has done so. A row replaces the row with the same key.

    Args:
        key: The columns of a unique constraint. Empty: the rows are added.
    Raises:
        OutputRefused: This attempt is no longer the run's current one, the rows do not fit the
            table, or several rows have the same key.
    """
    output = Statements(connection.dialect, table, writing.name, writing.mark)
    writing.require_current()
    columns = _matching(df.columns, connection.columns(table), table)
    keys = _matching(key, columns, f"the rows for {table}")
    found = _find_writer(connection, output)
    if found is None:
        found = _write(df.toDF(*columns), connection, output, writing, columns, keys)
    else:
        _drop_drafts(connection, output, is_written=True)
    return writing.outcome(found, table)


def _find_writer(connection: Connection, output: Statements) -> str | None:
    """Return the mark of the call that wrote the output; None: no call has written it.

    Create the table of tokens if it is missing.
    """
    try:
        return _query_mark(connection, output)
    except Exception:  # noqa: BLE001 - each database has its own error for a table that is missing
        try:
            connection.execute(output.create_tokens())
        except Exception:  # noqa: BLE001 - another run may have created it at the same moment
            return _query_mark(connection, output)
    return None


def _query_mark(connection: Connection, output: Statements) -> str | None:
    rows = connection.query(output.select_mark())
    return str(rows[0][0]) if rows else None


def _write(
    df: DataFrame,
    connection: Connection,
    output: Statements,
    writing: Writing,
    columns: Sequence[str],
    keys: Sequence[str],
) -> str:
    """Write the draft and move its rows. Return the mark of the call that wrote the output."""
    drafts: Sequence[Any] | None = None
    connection.execute(output.create_draft(columns))
    try:
        connection.write(df, output.draft)
        _refuse_repeated_keys(connection, output, keys)
        *preparations, last = output.commit(columns, keys)
        for statement in preparations:
            connection.execute(statement)
        # Directly before the commit, ask the service whether this attempt is the current one. Even if two attempts pass
        # this check, only one can store the token.
        writing.require_current()
        try:
            with _explained(output.table, keys):
                drafts = connection.execute(last, then=output.drafts())
        except Exception:
            found = _query_mark(connection, output)
            if found is None:
                raise
            return found
    finally:
        _drop_drafts(connection, output, drafts, is_written=drafts is not None)
    return writing.mark


def _refuse_repeated_keys(connection: Connection, output: Statements, keys: Sequence[str]) -> None:
    """Refuse a draft that has two rows with one key: some databases would keep the first row, others the second.

    Raises:
        OutputRefused: Two rows have the same key.
    """
    if keys and connection.query(output.count_repeated_keys(keys))[0][0]:
        raise OutputRefused(
            f"two of the rows for {output.table} have the same ({', '.join(keys)})",
            hint="keep one row for each key, for instance with dropDuplicates",
        )


def _drop_drafts(
    connection: Connection,
    output: Statements,
    drafts: Sequence[Any] | None = None,
    *,
    is_written: bool,
) -> None:
    """Drop this call's draft, and drafts that can no longer be committed. An error is only logged."""
    try:
        found = connection.query(output.drafts()) if drafts is None else drafts
        for drop in output.drop(found, is_written=is_written):
            connection.execute(drop)
    except Exception:
        # Do not raise: if the write failed, the user needs that error. A later write drops the drafts.
        logger.exception("a draft table could not be dropped")


def _matching(wanted: Sequence[str], known: Sequence[str], where: str) -> list[str]:
    """Return the known name for each wanted name. The two names may differ in upper and lower case.

    Raises:
        OutputRefused: A wanted name is not known, or several known names differ from it only in upper and lower case.
    """
    found = []
    for name in wanted:
        matches = [name] if name in known else [k for k in known if k.lower() == name.lower()]
        if len(matches) > 1:
            raise OutputRefused(
                f"{where} has the columns {', '.join(matches)}, and {name!r} may be any of them",
                hint="write the column's name as it is there",
            )
        if not matches:
            raise OutputRefused(
                f"{where} has no column {name!r}", hint=f"it has {', '.join(known)}"
            )
        found += matches
    return found


@contextmanager
def _explained(table: str, key: Sequence[str]) -> Iterator[None]:
    """Explain the error if the table lacks the unique constraint that the statement needs, or a row collides."""
    try:
        yield
    except Exception as error:
        if mentions(error, *_NO_CONSTRAINT):
            raise OutputRefused(
                f"{table} has no unique constraint on ({', '.join(key)})",
                hint="create the constraint, or give output.jdbc the columns of an existing one as key",
            ) from error
        if mentions(error, _COLLISION):
            raise OutputRefused(
                f"a row for {table} collides with a stored row in a unique constraint,"
                f" but the two rows differ in ({', '.join(key)})",
                hint="compare the rows with all unique constraints of the table",
            ) from error
        raise
