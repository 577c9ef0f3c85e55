"""Conditions that select rows by a list of ids, with statements that stay fast if PostgreSQL's statistics are wrong.

If a table was empty when PostgreSQL analyzed it, the planner expects one row in it until the next analysis, however
many rows were inserted since then. For a join of two such tables, the planner chooses a plan that compares each row of
one table with each row of the other. But if the query has a list of ids whose length the planner knows, the planner
chooses a hash join.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson
from sqlalchemy import ARRAY, BigInteger, ColumnElement, and_, bindparam, func, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute


async def plan_with_values(session: AsyncSession) -> None:
    """Make PostgreSQL plan each statement of this transaction for its values, so that it knows the length of a list."""
    if is_postgres(session):
        setting = func.set_config("plan_cache_mode", "force_custom_plan", True)
        await session.execute(select(setting))


def is_listed(
    session: AsyncSession, column: InstrumentedAttribute[int], ids: Sequence[int]
) -> ColumnElement[bool]:
    """Return the condition that the column's value is one of the ids: at least one, each once."""
    if is_postgres(session):
        listed = func.unnest(bindparam(None, ids, ARRAY(BigInteger))).column_valued()
        # The range bounds what the planner reads if it chooses not to look up each id.
        return and_(column == listed, column.between(min(ids), max(ids)))
    values = func.json_each(orjson.dumps(ids).decode()).table_valued("value")
    return column.in_(select(values.c.value))


def is_postgres(session: AsyncSession) -> bool:
    """Return whether the session's database is PostgreSQL; else it is SQLite."""
    return session.get_bind().dialect.name == "postgresql"
