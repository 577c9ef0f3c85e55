"""Pauses and unpauses DAGs."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.actors import Actor
from triggerer.errors import UnknownDag
from triggerer.operations.audit import Action, record
from triggerer.store.dags.pausing import set_paused


async def pause_dag(session: AsyncSession, actor: Actor, dag_id: str) -> bool:
    """Pause a DAG. Return False if the DAG was paused already.

    While a DAG is paused, the scheduler creates no run of the DAG, and asset events wait in the DAG's queue. Runs that
    are queued already are executed. Manual runs, retries and backfills are still possible.

    Raises:
        UnknownDag: There is no such DAG.
    """
    return await _set(session, actor, dag_id, paused=True)


async def unpause_dag(session: AsyncSession, actor: Actor, dag_id: str) -> bool:
    """Unpause a DAG. Return False if the DAG was not paused.

    New runs start, with the events that were queued during the pause.

    Raises:
        UnknownDag: There is no such DAG.
    """
    return await _set(session, actor, dag_id, paused=False)


async def _set(session: AsyncSession, actor: Actor, dag_id: str, *, paused: bool) -> bool:
    was_paused = await set_paused(session, dag_id, paused=paused)
    if was_paused is None:
        raise UnknownDag(dag_id)
    if was_paused is paused:
        return False
    await record(
        session,
        actor,
        Action.DAG_PAUSE if paused else Action.DAG_UNPAUSE,
        dag_id,
        before={"is_paused": was_paused},
        after={"is_paused": paused},
    )
    return True
