"""Pauses and unpauses DAGs."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.store.dags.due_moments import renew_due_moments
from triggerer.store.database.wakeups.signals import Signal, announce
from triggerer.store.schema.models import Dag


async def set_paused(session: AsyncSession, dag_id: str, *, paused: bool) -> bool | None:
    """Pause or unpause a DAG; return whether it was paused before, or None if there is no such DAG.

    The commit wakes the scheduler.
    """
    dag = await session.get(Dag, dag_id, with_for_update=True)
    if dag is None:
        return None
    was_paused, dag.is_paused = dag.is_paused, paused
    if was_paused and not paused:
        # Data intervals may have ended during the pause. The timetable decides which of their runs are created now.
        await renew_due_moments(session, [dag])
    announce(session, Signal.DAGS_CHANGED, dag_id)
    return was_paused
