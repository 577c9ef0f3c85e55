"""Pauses and unpauses DAGs."""

from __future__ import annotations

from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.store.models import Dag
from triggerer.store.wakeups.signals import Signal, announce


async def set_paused(session: AsyncSession, dag_id: str, *, paused: bool) -> bool:
    """Pause or unpause; False if there is no such DAG. Wakes the scheduler once committed."""
    statement = update(Dag).where(Dag.dag_id == dag_id).values(is_paused=paused)
    if await session.scalar(statement.returning(Dag.dag_id)) is None:
        return False
    announce(session, Signal.DAGS_CHANGED, dag_id)
    return True
