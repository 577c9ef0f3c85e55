"""Column types and the declarative base that all tables share."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, Connection, DateTime, Integer, MetaData, Text, event
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.types import TypeDecorator

# SQLite generates ids only in a column declared as INTEGER.
BigId = BigInteger().with_variant(Integer, "sqlite")
TextByBytes = Text().with_variant(Text(collation="C"), "postgresql")
"""Text that is compared byte by byte, for keys that are looked up. On PostgreSQL, a comparison by the rules of a
language takes much longer, and only lists for people need it.
"""
Json = JSON()
"""For a JSON object or array, stored as the text that was written; see `triggerer.domain.text.json_text`.

PostgreSQL's `jsonb` keeps numbers as decimals: it would return 1e16 as an integer, and -0.0 without its sign. So the
column is `json`. A value must not be a single number, because SQLite would make an integer of 1.0.
"""


class UtcDateTime(TypeDecorator[datetime]):
    """An aware instant. SQLite has no type with a time zone, so it stores the instant as UTC text without a zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value!r} has no time zone")
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        assert isinstance(value, datetime)
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Base(DeclarativeBase):
    """The base of all tables. It names every constraint, so that a migration can refer to it."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


@event.listens_for(Base.metadata, "before_create")
def _partial_on_both(metadata: MetaData, connection: Connection, **_: Any) -> None:
    # On PostgreSQL, copy the conditions of partial indexes from `sqlite_where` to `postgresql_where`. The models do not
    # set `postgresql_where`, because SQLAlchemy would then import the PostgreSQL dialect even for SQLite.
    if connection.dialect.name == "postgresql":
        for table in metadata.tables.values():
            for index in table.indexes:
                where = index.dialect_options["sqlite"]["where"]
                index.dialect_options["postgresql"]["where"] = where
