"""Tells the current attempt of a run from former ones."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.store.runs.state_conditions import RUNNING
from triggerer.store.schema.models import DagRun


async def is_current(session: AsyncSession, *, executor: str, run_pk: int, epoch: int) -> bool:
    """Return whether the run is running, in the attempt with this epoch, on this executor.

    False for an executor that was taken for dead: its runs were queued again, and another attempt may have begun.
    """
    found = await session.scalar(
        select(DagRun.id).where(
            DagRun.id == run_pk,
            RUNNING,
            DagRun.executor == executor,
            DagRun.epoch == epoch,
        )
    )
    return found is not None
