"""The databases of `output.jdbc`: how each of them names, lists and creates tables, and commits a draft's rows.

Spark first writes an output's rows into a draft table. In one transaction, a commit stores the output's token and moves
the draft's rows to the target. All tries of a task have the same token, which is part of a primary key. So only one try
can commit.

Spark's connection commits after each call, so a single call must store the token and move the rows:

- PostgreSQL does both in one statement.
- Most other databases accept several statements in one call: BEGIN, the two statements, and COMMIT.
- Derby and SQLite get a database trigger that moves the rows when the token is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from triggerer.errors import OutputRefused

DRAFT: Final = "triggerer_draft"


@dataclass(frozen=True, slots=True)
class Move:
    """A move of rows from the draft to the target. All names are quoted already."""

    target: str
    draft: str
    columns: Sequence[str]
    key: Sequence[str]
    """The columns of a unique constraint. A row replaces the target's row with the same key. Empty: rows are added."""
    condition: str
    """The WHERE clause of the insertion, see `Dialect`."""

    @property
    def others(self) -> list[str]:
        """The columns outside the key."""
        return [name for name in self.columns if name not in self.key]

    def insertion(self) -> str:
        """Return a statement that adds the rows."""
        of_draft = ", ".join(f"d.{name}" for name in self.columns)
        return (
            f"INSERT INTO {self.target} ({', '.join(self.columns)})"
            f" SELECT {of_draft} FROM {self.draft} d WHERE {self.condition}"
        )


def _on_conflict(move: Move) -> str:
    key = ", ".join(move.key)
    changes = ", ".join(f"{name} = EXCLUDED.{name}" for name in move.others)
    action = f"DO UPDATE SET {changes}" if changes else "DO NOTHING"
    return f"{move.insertion()} ON CONFLICT ({key}) {action}"


def _on_duplicate_key(move: Move) -> str:
    # The database changes the stored row that collides in any unique constraint. If this row has another key than the
    # draft's row, a subquery with two rows makes the statement fail. A key with NULL is equal to no key.
    # An UPDATE and an INSERT would refuse such a row too, but two commits at once would often be a deadlock.
    first = f"{move.target}.{move.key[0]}"
    same = " AND ".join(f"{move.target}.{name} = d.{name}" for name in move.key)
    check = f"{move.key[0]} = IF(({same}) OR (SELECT 1 UNION ALL SELECT 2), {first}, {first})"
    changes = ", ".join([check, *(f"{name} = d.{name}" for name in move.others)])
    return f"{move.insertion()} ON DUPLICATE KEY UPDATE {changes}"


def _merge(move: Move, hint: str = "") -> str:
    same = " AND ".join(f"t.{name} = d.{name}" for name in move.key)
    changes = ", ".join(f"{name} = d.{name}" for name in move.others)
    update = f" WHEN MATCHED THEN UPDATE SET {changes}" if changes else ""
    values = ", ".join(f"d.{name}" for name in move.columns)
    return (
        f"MERGE INTO {move.target}{hint} t USING {move.draft} d ON ({same}){update}"
        f" WHEN NOT MATCHED THEN INSERT ({', '.join(move.columns)}) VALUES ({values})"
    )


def _merge_with_range_lock(move: Move) -> str:
    # Without HOLDLOCK, two MERGE statements that run at once may both insert a row with the same
    # key.
    return _merge(move, " WITH (HOLDLOCK) AS")


def _tables(source: str, schema: str, name: str = "TABLE_NAME", kind: str = "TABLE") -> str:
    return (
        f"SELECT '{kind}' AS kind, {name} AS name FROM {source}"
        f" WHERE {schema} = {{schema}} AND LOWER({name}) LIKE '{DRAFT}%'"
    )


_IN_INFORMATION_SCHEMA: Final = _tables("INFORMATION_SCHEMA.TABLES", "TABLE_SCHEMA")


@dataclass(frozen=True, slots=True)
class Dialect:
    """The SQL of one database. `Statements` fills in the templates `commit`, `drafts` and `empty_copy`.

    Args:
        name: The database's name in messages.
        driver: The class of its JDBC driver; None: Java finds the driver by the URL.
        commit: Statements that store the token and move the rows. The last statement stores the token.
        replace: Returns the statement that inserts the rows, and replaces rows with the same key.
        fold: Returns a name without quotes as the database stores it, for instance in lower case.
        schema: An expression for the present schema; None: tables are named without a schema.
        drafts: A query for the kind and the name of each draft in a schema.
        empty_copy: A statement that creates the draft with the types of the target's columns.
        quotes: The characters before and after a quoted name.
        nothing: A query that reads no table. Spark's JDBC source executes a statement only together with a query.
        timestamp: The type of a column for an instant.
        options: Options of the JDBC connection.
        condition: The WHERE clause of the statement that inserts the rows.
    """

    name: str
    driver: str | None
    commit: tuple[str, ...]
    replace: Callable[[Move], str]
    fold: Callable[[str], str] = str.lower
    schema: str | None = "CURRENT_SCHEMA"
    drafts: str = _IN_INFORMATION_SCHEMA
    empty_copy: str = "CREATE TABLE {draft} AS SELECT {columns} FROM {table} WHERE 1 = 0"
    quotes: tuple[str, str] = ('"', '"')
    nothing: str = "SELECT 1 AS one"
    timestamp: str = "TIMESTAMP"
    options: Mapping[str, str] = field(default_factory=dict)
    condition: str = "1 = 1"

    def quoted(self, name: str) -> str:
        """Return a name in the database's quotes, so that the database takes it literally."""
        opening, closing = self.quotes
        return f"{opening}{name.replace(closing, closing * 2)}{closing}"


_POSTGRESQL: Final = Dialect(
    "PostgreSQL",
    "org.postgresql.Driver",
    # Because of `condition` (below), PostgreSQL stores the token before the rows. While another try is storing the same
    # token, this commit waits for the other try's transaction.
    ("WITH token AS ({token} RETURNING 1) {rows}",),
    _on_conflict,
    schema="current_schema()",
    empty_copy="CREATE UNLOGGED TABLE {draft} AS SELECT {columns} FROM {table} WHERE 1 = 0",
    timestamp="TIMESTAMP WITH TIME ZONE",
    # Spark writes some types as strings. With this option, PostgreSQL converts a string to the type of the column.
    options={"stringtype": "unspecified"},
    condition="EXISTS (SELECT 1 FROM token)",
)
_MYSQL: Final = Dialect(
    "MySQL",
    "com.mysql.cj.jdbc.Driver",
    ("START TRANSACTION; {token}; {rows}; COMMIT",),
    _on_duplicate_key,
    # Do not change the case of names, because some servers distinguish upper and lower case.
    fold=str,
    schema="DATABASE()",
    quotes=("`", "`"),
    options={"allowMultiQueries": "true"},
)
_MARIADB: Final = Dialect(
    "MariaDB",
    "org.mariadb.jdbc.Driver",
    _MYSQL.commit,
    _on_duplicate_key,
    fold=str,
    schema="DATABASE()",
    quotes=("`", "`"),
    options={
        "allowMultiQueries": "true",
        # Spark does not know MariaDB, so it puts names into `"`. The mode ANSI_QUOTES lets MariaDB accept these quotes.
        "sessionVariables": "sql_mode=CONCAT(@@sql_mode,',ANSI_QUOTES')",
    },
)
_SQL_SERVER: Final = Dialect(
    "SQL Server",
    "com.microsoft.sqlserver.jdbc.SQLServerDriver",
    # Without NOCOUNT each statement returns a count of rows. The driver would read the first count only, and miss an
    # error of the second statement.
    ("SET NOCOUNT ON; SET XACT_ABORT ON; BEGIN TRANSACTION; {token}; {rows}; COMMIT",),
    _merge_with_range_lock,
    schema="SCHEMA_NAME()",
    # A plain SELECT INTO would also copy the identity property of a column, and Spark cannot insert values into an
    # identity column. From a union, SELECT INTO copies no identity property.
    empty_copy=(
        "SELECT {columns} INTO {draft} FROM {table} WHERE 1 = 0"
        " UNION ALL SELECT {columns} FROM {table} WHERE 1 = 0"
    ),
    quotes=("[", "]"),
    timestamp="DATETIME2",
)
_ORACLE: Final = Dialect(
    "Oracle",
    "oracle.jdbc.OracleDriver",
    ("BEGIN {token}; {rows}; COMMIT; END;",),
    _merge,
    fold=str.upper,
    schema="SYS_CONTEXT('USERENV', 'CURRENT_SCHEMA')",
    drafts=_tables("all_tables", "owner"),
    nothing="SELECT 1 AS one FROM dual",
)
_H2: Final = Dialect(
    "H2",
    "org.h2.Driver",
    ("SET AUTOCOMMIT FALSE; {token}; {rows}; COMMIT",),
    _merge,
    fold=str.upper,
    schema="SCHEMA()",
    empty_copy="CREATE TABLE {draft} AS SELECT {columns} FROM {table} WITH NO DATA",
)
_DERBY: Final = Dialect(
    "Derby",
    None,
    (
        (
            "CREATE TRIGGER {draft} AFTER INSERT ON {tokens} REFERENCING NEW AS fresh FOR EACH ROW"
            " WHEN (fresh.mark = {mark}) {rows}"
        ),
        "{token}",
    ),
    _merge,
    fold=str.upper,
    schema="CURRENT SCHEMA",
    drafts=" UNION ALL ".join(
        _tables(
            f"sys.sys{kind}s one JOIN sys.sysschemas s ON s.schemaid = one.schemaid",
            "s.schemaname",
            f"one.{kind}name",
            kind.upper(),
        )
        for kind in ("trigger", "table")
    ),
    empty_copy=_H2.empty_copy,
    nothing="SELECT 1 AS one FROM sysibm.sysdummy1",
)
_SQLITE: Final = Dialect(
    "SQLite",
    "org.sqlite.JDBC",
    (
        "CREATE TRIGGER {draft} AFTER INSERT ON {tokens} WHEN NEW.mark = {mark} BEGIN {rows}; END",
        "{token}",
    ),
    _on_conflict,
    schema=None,
    drafts=f"SELECT type AS kind, name FROM sqlite_master WHERE name LIKE '{DRAFT}%'",
    # SQLite has one writer at a time, so one partition writes the draft.
    options={"numPartitions": "1"},
)

_DIALECTS: Final = {
    "postgresql": _POSTGRESQL,
    "mysql": _MYSQL,
    "mariadb": _MARIADB,
    "sqlserver": _SQL_SERVER,
    "oracle": _ORACLE,
    "h2": _H2,
    "derby": _DERBY,
    "sqlite": _SQLITE,
}


def dialect_of(url: str) -> Dialect:
    """Return the dialect of the database that a JDBC URL names.

    Raises:
        OutputRefused: There is no dialect for this database.
    """
    kind = ":".join(url.split(":")[:2])
    dialect = _DIALECTS.get(kind.removeprefix("jdbc:"))
    if dialect is None:
        *most, last = (one.name for one in _DIALECTS.values())
        raise OutputRefused(
            f"output.jdbc writes to {', '.join(most)} and {last}, and knows no statement for {kind}",
            hint="write with Spark, and store output.token in the same transaction as the rows",
        )
    return dialect
