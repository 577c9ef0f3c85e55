"""Statements of the hot path: text, written once for both databases, that SQLAlchemy does not have to compile.

A `Statement` is formatted when its module is imported, and given to the driver as it is. Called with its values it is
a step of a script. Whatever is not on the hot path is written with SQLAlchemy.
"""

from __future__ import annotations

import sqlite3
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import orjson

from triggerer.domain.json_text import load_json
from triggerer.errors import RowRefused
from triggerer.store.database.clock import Now
from triggerer.store.database.script import Row


class OneOrMany(NamedTuple):
    """A constant for a parameter that holds many values or rows, and mostly has one.

    SQLite makes a table of what it is given as JSON, each time: that of one value is a third of what a short statement
    costs. So there is a text for one too.
    """

    sqlite: str
    postgres: str
    of_one: str
    """On SQLite, of one value, or of one row, whose columns are the parameters `<parameter>_0` and so on."""
    parameter: str


class Statement:
    """A template with `{parameter}`s, and `{CONSTANT}`s that differ between the databases.

    Called with its values it is a step, whose rows are as the driver gives them: on SQLite, JSON and
    instants are text. Values are the same for both databases: an instant, which must be aware, becomes
    what the columns hold, and a list what `in_list` takes.

    Args:
        constants: For each constant its text on SQLite and on PostgreSQL, which may hold parameters.
    """

    def __init__(self, template: str, **constants: tuple[str, str] | OneOrMany) -> None:
        sqlite = {name: texts[0] for name, texts in constants.items()}
        postgres = {name: texts[1] for name, texts in constants.items()}
        several = [texts for texts in constants.values() if isinstance(texts, OneOrMany)]
        self.parameters: Final = _parameters(_filled(template, postgres))
        self.postgres: Final = _filled(template, postgres).format(
            **{name: f"${place}" for place, name in enumerate(self.parameters, 1)}
        )
        self.sqlite: Final = _named(_filled(template, sqlite))
        self.sqlite_of_one: Final = _named(
            _filled(
                template,
                sqlite | {n: c.of_one for n, c in constants.items() if isinstance(c, OneOrMany)},
            )
        )
        self.several: Final = frozenset(texts.parameter for texts in several)
        """The parameters that hold many, for which `sqlite_of_one` has a text if each of them holds one."""

    def __call__(self, **values: Any) -> BoundStatement:
        return BoundStatement(self, values)


@dataclass(frozen=True, slots=True)
class BoundStatement:
    """A statement with its values."""

    statement: Statement
    values: Mapping[str, Any]

    def on_sqlite(self, connection: sqlite3.Connection, now: Now) -> list[Row]:
        several, values = self.statement.several, self.values
        if several and all(len(values[name]) == 1 for name in several):
            return self._of_one(connection)
        given = {name: _for_sqlite(value) for name, value in values.items()}
        return connection.execute(self.statement.sqlite, given).fetchall()

    def _of_one(self, connection: sqlite3.Connection) -> list[Row]:
        """Raises: RowRefused: As `ParameterRows.as_json`."""
        given: dict[str, Any] = {}
        for name, value in self.values.items():
            if name not in self.statement.several:
                given[name] = _for_sqlite(value)
            elif isinstance(value, ParameterRows):
                (row,) = value.rows
                given |= {f"{name}_{place}": _for_sqlite(item) for place, item in enumerate(row)}
            else:
                (given[name],) = value
        try:
            return connection.execute(self.statement.sqlite_of_one, given).fetchall()
        except (OverflowError, UnicodeEncodeError) as error:
            raise RowRefused(f"a value cannot be stored: {error}") from error

    def on_postgres(self) -> tuple[str, Sequence[Any]]:
        values = [self.values[name] for name in self.statement.parameters]
        return self.statement.postgres, [
            value.as_json(datetime.isoformat) if isinstance(value, ParameterRows) else value
            for value in values
        ]


def _for_sqlite(value: Any) -> Any:
    if isinstance(value, datetime):
        return sqlite_instant(value)
    if isinstance(value, ParameterRows):
        return value.as_json(sqlite_instant)
    if isinstance(value, list):
        return orjson.dumps(value).decode()
    return value


def sqlite_instant(instant: datetime) -> str:
    """Return the text that SQLAlchemy's DateTime writes: naive UTC with microseconds."""
    if instant.tzinfo is not UTC:
        instant = instant.astimezone(UTC)
    if not instant.microsecond:
        # Without "+00:00".
        return instant.isoformat(" ", "microseconds")[:26]
    # 0.36 µs; `isoformat` takes 0.9.
    return orjson.dumps(instant)[1:27].decode().replace("T", " ")


def instant_from(value: str | datetime | None) -> datetime | None:
    """Return an instant of a fetched row, aware."""
    if isinstance(value, str):
        # Four times as fast as to replace the time zone afterwards, and done for each instant of each row.
        return datetime.fromisoformat(f"{value}+00:00")
    return None if value is None else value.astimezone(UTC)


def json_from(value: Any) -> Any:
    """Return a JSON object or array of a fetched row; what PostgreSQL makes as an array, its driver has decoded."""
    return load_json(value) if isinstance(value, str) else value


@dataclass(frozen=True, slots=True)
class ParameterRows:
    """Many rows as one value, for a parameter in `parameter_rows`."""

    rows: Sequence[Sequence[Any]]

    def __len__(self) -> int:
        return len(self.rows)

    def as_json(self, instant: Callable[[datetime], str]) -> str:
        """Return a JSON array of arrays, with instants in the form that the columns take.

        Raises:
            RowRefused: A value of one of them is not JSON: half a character, or a number beyond 64 bits.
        """

        def default(value: Any) -> Any:
            # What orjson leaves to others: instants, and rows that are named tuples.
            return instant(value) if isinstance(value, datetime) else list(value)

        try:
            return orjson.dumps(
                self.rows, default=default, option=orjson.OPT_PASSTHROUGH_DATETIME
            ).decode()
        except TypeError as error:
            raise RowRefused(f"a value cannot be stored: {error}") from error


def in_list(parameter: str, kind: str) -> OneOrMany:
    """Return a constant: `IN` the list that is the parameter; `kind` is PostgreSQL's type of its items."""
    return OneOrMany(
        f"IN (SELECT value FROM json_each({{{parameter}}}))",
        f"= ANY({{{parameter}}}::{kind}[])",
        f"IN ({{{parameter}}})",
        parameter,
    )


def parameter_rows(**columns: str) -> OneOrMany:
    """Return a constant: the `ParameterRows` of the parameter `{rows}` as a table; `columns` has PostgreSQL's types.

    The values of a row are texts, numbers, truth values, instants and None.
    """
    extracted = ", ".join(f"json_extract(value, '$[{i}]') AS {c}" for i, c in enumerate(columns))
    cast = ", ".join(f"(v ->> {i})::{kind} AS {c}" for i, (c, kind) in enumerate(columns.items()))
    given = ", ".join(f"{{rows_{i}}} AS {c}" for i, c in enumerate(columns))
    return OneOrMany(
        f"(SELECT {extracted} FROM json_each({{rows}}))",
        f"(SELECT {cast} FROM jsonb_array_elements({{rows}}::text::jsonb) AS e(v))",
        f"(SELECT {given})",
        "rows",
    )


def _filled(template: str, constants: Mapping[str, str]) -> str:
    for name, text in constants.items():
        template = template.replace(f"{{{name}}}", text)
    return template


def _named(template: str) -> str:
    """Write parameters as SQLite's driver takes them."""
    return template.format(**{name: f":{name}" for name in _parameters(template)})


def _parameters(template: str) -> tuple[str, ...]:
    """Return the names of the parameters, each once, in order."""
    fields = (field for _, field, _, _ in string.Formatter().parse(template))
    return tuple(dict.fromkeys(field for field in fields if field))
