"""Statements of the hot path: text written once for both databases, sent past the compiler.

Between a message and its run the event loop spends its time on the statements, and most of that in
SQLAlchemy's compilation cache, its result rows and, on SQLite, in a turn of the driver's thread for each
step. A `Statement` is formatted when its module is imported and handed to the driver as it is. Everything
that is not on that path is written with SQLAlchemy as usual.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import orjson
from sqlalchemy import CursorResult
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.store.sqlite_thread import in_thread


class Statement:
    """A template with `{parameter}`s, and `{CONSTANT}`s that differ between the databases.

    Args:
        constants: For each constant its text on SQLite and on PostgreSQL; may hold parameters in turn.
    """

    def __init__(self, template: str, **constants: tuple[str, str]) -> None:
        sqlite = {name: texts[0] for name, texts in constants.items()}
        postgres = {name: texts[1] for name, texts in constants.items()}
        self._parameters: Final = _parameters(_filled(template, postgres))
        self.sqlite: Final = _filled(template, sqlite).format(
            **{name: f":{name}" for name in self._parameters}
        )
        self.postgres: Final = _filled(template, postgres).format(
            **{name: f"${place}" for place, name in enumerate(self._parameters, 1)}
        )

    async def fetch(self, session: AsyncSession, **values: Any) -> list[tuple[Any, ...]]:
        """Return all rows, as the driver gives them: on SQLite JSON and instants are text.

        Raises:
            sqlite3.Error, sqlalchemy.exc.DBAPIError: `Database.transaction` translates them.
        """
        if is_sqlite(session):
            return await in_thread(
                session, lambda sqlite: sqlite.execute(self.sqlite, values).fetchall()
            )
        return [tuple(row) for row in await self._send(session, values)]

    async def change(self, session: AsyncSession, **values: Any) -> int:
        """Execute it, and return how many rows it changed. Raises as `fetch`."""
        if is_sqlite(session):
            return await in_thread(
                session, lambda sqlite: sqlite.execute(self.sqlite, values).rowcount
            )
        return (await self._send(session, values)).rowcount

    async def _send(self, session: AsyncSession, values: Mapping[str, Any]) -> CursorResult[Any]:
        connection = await session.connection()
        bound = tuple(values[name] for name in self._parameters)
        return await connection.exec_driver_sql(self.postgres, bound)


def is_sqlite(session: AsyncSession) -> bool:
    """Whether the session's database is SQLite."""
    return session.get_bind().dialect.name == "sqlite"


def instant_in(session: AsyncSession, instant: datetime) -> Any:
    """An instant as a parameter: on SQLite the text that SQLAlchemy's DateTime writes, naive UTC."""
    return sqlite_instant(instant) if is_sqlite(session) else instant


def sqlite_instant(instant: datetime) -> str:
    """The text that SQLAlchemy's DateTime writes: naive UTC with microseconds."""
    return instant.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")


def instant_from(value: str | datetime | None) -> datetime | None:
    """An instant out of a fetched row, aware."""
    if isinstance(value, str):
        return datetime.fromisoformat(value).replace(tzinfo=UTC)
    return None if value is None else value.astimezone(UTC)


def json_from(value: Any) -> Any:
    """A JSON object or array out of a fetched row; PostgreSQL's driver has decoded it already."""
    return orjson.loads(value) if isinstance(value, str) else value


def json_rows(session: AsyncSession, rows: Iterable[Sequence[Any]]) -> str:
    """Many rows as one parameter: a JSON array of arrays. Instants become what the columns take."""
    write = sqlite_instant if is_sqlite(session) else datetime.isoformat
    return orjson.dumps(
        [[write(v) if isinstance(v, datetime) else v for v in row] for row in rows]
    ).decode()


def given_rows(**columns: str) -> tuple[str, str]:
    """A constant: the rows of the parameter `{rows}` as a table, with these columns and PostgreSQL types."""
    extracted = ", ".join(f"json_extract(value, '$[{i}]') AS {c}" for i, c in enumerate(columns))
    cast = ", ".join(f"(v ->> {i})::{kind} AS {c}" for i, (c, kind) in enumerate(columns.items()))
    return (
        f"(SELECT {extracted} FROM json_each({{rows}}))",
        f"(SELECT {cast} FROM jsonb_array_elements({{rows}}::text::jsonb) AS e(v))",
    )


def _filled(template: str, constants: Mapping[str, str]) -> str:
    for name, text in constants.items():
        template = template.replace(f"{{{name}}}", text)
    return template


def _parameters(template: str) -> tuple[str, ...]:
    """The names of the parameters, each once, in order."""
    fields = (field for _, field, _, _ in string.Formatter().parse(template))
    return tuple(dict.fromkeys(field for field in fields if field))
