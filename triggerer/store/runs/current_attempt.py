"""Checks whether an attempt is still the current attempt of its run."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.store.runs.state_conditions import RUNNING
from triggerer.store.schema.models import DagRun


async def is_current(session: AsyncSession, *, executor: str, run_pk: int, epoch: int) -> bool:
    """Return whether the run is running, in the attempt with this epoch, on this executor.

    For example, the result is False if the executor seemed dead for a while: its runs were then queued again.
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
