"""Conditions on lists of ids, which stay fast if PostgreSQL's statistics are out of date.

If a table was empty at its last ANALYZE, the planner expects one row in it, even after many rows were inserted. The
planner then joins two such tables by a nested loop, which compares every pair of rows. If a list in the query shows the
planner how many ids there are, the planner chooses a hash join.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson
from sqlalchemy import ARRAY, BigInteger, ColumnElement, and_, bindparam, func, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute


async def plan_with_values(session: AsyncSession) -> None:
    """Make PostgreSQL plan this transaction's statements for their actual values, so that it knows a list's length."""
    if is_postgres(session):
        setting = func.set_config("plan_cache_mode", "force_custom_plan", True)
        await session.execute(select(setting))


def is_listed(
    session: AsyncSession, column: InstrumentedAttribute[int], ids: Sequence[int]
) -> ColumnElement[bool]:
    """Return the condition that the column's value is in `ids`. `ids` must not be empty, nor contain an id twice."""
    if is_postgres(session):
        listed = func.unnest(bindparam(None, ids, ARRAY(BigInteger))).column_valued()
        # If the planner does not look up each id, the range limits how many rows it reads.
        return and_(column == listed, column.between(min(ids), max(ids)))
    values = func.json_each(orjson.dumps(ids).decode()).table_valued("value")
    return column.in_(select(values.c.value))


def is_postgres(session: AsyncSession) -> bool:
    """Return whether the session's database is PostgreSQL; else it is SQLite."""
    return session.get_bind().dialect.name == "postgresql"
