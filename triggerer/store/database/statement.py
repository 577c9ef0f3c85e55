"""Statements of the hot path: text, written once for both databases, that SQLAlchemy does not have to compile.

The text of a `Statement` is formatted when its module is imported, and the driver receives this text unchanged. A call
of the `Statement` with its values returns a step of a script. Everything off the hot path is written with SQLAlchemy.
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
    """A constant for a parameter that takes many values or rows, and mostly has one.

    SQLite turns a JSON parameter into a table at each execution. For a single value, this takes a third of the time of
    a short statement. So there is a second text for a single value.
    """

    sqlite: str
    postgres: str
    of_one: str
    """SQLite's text for one value, or for one row, whose columns are the parameters `<parameter>_0` and so on."""
    parameter: str


class Statement:
    """A template with `{parameter}`s, and `{CONSTANT}`s that differ between the databases.

    A call with values returns a step. The step's rows are as the driver returns them, so on SQLite JSON and instants
    are text. Callers pass equal values for both databases: an aware instant is converted to the form of the columns,
    and a list is converted to the form that `in_list` takes.

    Args:
        constants: Each constant's text for SQLite and for PostgreSQL. A text may contain parameters.
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
        """The parameters that take many values. If each has one value, `sqlite_of_one` is used."""

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
        """Raises: RowRefused: A value does not fit a column."""
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
        # The slice cuts off "+00:00".
        return instant.isoformat(" ", "microseconds")[:26]
    # 0.36 µs; `isoformat` takes 0.9.
    return orjson.dumps(instant)[1:27].decode().replace("T", " ")


def instant_from(value: str | datetime | None) -> datetime | None:
    """Return the instant of a fetched column, aware."""
    if isinstance(value, str):
        # Four times as fast as replacing the time zone afterwards, and this runs for each instant of each row.
        return datetime.fromisoformat(f"{value}+00:00")
    return None if value is None else value.astimezone(UTC)


def json_from(value: Any) -> Any:
    """Return the JSON value of a fetched column. PostgreSQL's arrays are decoded already."""
    return load_json(value) if isinstance(value, str) else value


@dataclass(frozen=True, slots=True)
class ParameterRows:
    """Many rows as one value, for a parameter in `parameter_rows`."""

    rows: Sequence[Sequence[Any]]

    def __len__(self) -> int:
        return len(self.rows)

    def as_json(self, instant: Callable[[datetime], str]) -> str:
        """Return a JSON array of arrays, with instants in the form of the columns.

        Raises:
            RowRefused: A value is not JSON, such as half a character or a number beyond 64 bits.
        """

        def default(value: Any) -> Any:
            # orjson does not encode instants in our form, nor rows that are named tuples.
            return instant(value) if isinstance(value, datetime) else list(value)

        try:
            return orjson.dumps(
                self.rows, default=default, option=orjson.OPT_PASSTHROUGH_DATETIME
            ).decode()
        except TypeError as error:
            raise RowRefused(f"a value cannot be stored: {error}") from error


def in_list(parameter: str, kind: str) -> OneOrMany:
    """Return a constant: `IN` the list of the parameter. `kind` is PostgreSQL's type of its items."""
    return OneOrMany(
        f"IN (SELECT value FROM json_each({{{parameter}}}))",
        f"= ANY({{{parameter}}}::{kind}[])",
        f"IN ({{{parameter}}})",
        parameter,
    )


def parameter_rows(**columns: str) -> OneOrMany:
    """Return a constant: the `ParameterRows` in the parameter `{rows}` as a table. `columns` has PostgreSQL's types.

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
    """Write parameters in the form of SQLite's driver."""
    return template.format(**{name: f":{name}" for name in _parameters(template)})


def _parameters(template: str) -> tuple[str, ...]:
    """Return the names of the parameters, each once, in order."""
    fields = (field for _, field, _, _ in string.Formatter().parse(template))
    return tuple(dict.fromkeys(field for field in fields if field))
