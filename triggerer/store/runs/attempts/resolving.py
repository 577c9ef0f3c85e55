"""Carries out an operator's decision that the unknown attempts of a run are lost (`runs resolve --lost`).

An attempt is unknown if its process is gone and nobody can tell whether it is still at work in its cluster or on its
server. The run's next attempt waits until the unknown attempt has ended. The caller commits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.attempt_states import AttemptState
from triggerer.domain.runs import RunState
from triggerer.store.database.script import perform
from triggerer.store.runs.attempts.steps import close_launches
from triggerer.store.schema.models import DagRun, RunAttempt
from triggerer.store.schema.models.dags import NEVER

_REASON: Final = "an operator declared it lost with `runs resolve --lost`"


@dataclass(frozen=True, slots=True)
class Resolved:
    """The result of `resolve_as_lost`."""

    state: RunState
    """The state of the run."""
    attempts: list[int]
    """The numbers of the attempts that are lost now."""


async def resolve_as_lost(session: AsyncSession, dag_id: str, run_id: str) -> Resolved | None:
    """Mark all unknown attempts of a run as lost, and release the run if it waits for them.

    Returns:
        None if there is no such run.
    """
    run = await session.scalar(
        select(DagRun).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id).with_for_update()
    )
    if run is None:
        return None
    state = RunState(run.state)
    # The current attempt of a running run is left out, because its executor knows its state.
    before = run.epoch if state is RunState.RUNNING else run.epoch + 1
    ended = await perform(
        session, close_launches(run.id, AttemptState.LOST, _REASON, before_epoch=before)
    )
    if not ended:
        return Resolved(state, [])
    numbers = await session.scalars(
        select(RunAttempt.number)
        .where(RunAttempt.run_pk == run.id, RunAttempt.epoch.in_(ended))
        .order_by(RunAttempt.epoch)
    )
    await session.execute(
        update(DagRun)
        .where(
            DagRun.id == run.id,
            DagRun.state == RunState.QUEUED.value,
            DagRun.held_until.is_not(None),
            DagRun.held_until != NEVER,
        )
        .values(held_until=None, waiting_for=None, waiting_since=None)
    )
    return Resolved(state, list(numbers))
