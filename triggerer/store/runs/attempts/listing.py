"""Reads the attempts of runs for the commands and the API."""

from __future__ import annotations

from collections import defaultdict

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.store.listing.views import AttemptView, LaunchView, view_of
from triggerer.store.schema.models import DagRun, RunAttempt, RunLaunch


async def list_attempts(session: AsyncSession, dag_id: str, run_id: str) -> list[AttemptView]:
    """Return the attempts of a run, oldest first, each with its launches."""
    of_run = select(DagRun.id).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id)
    launches: dict[int, list[LaunchView]] = defaultdict(list)
    query = select(RunLaunch).where(RunLaunch.run_pk.in_(of_run)).order_by(RunLaunch.tag)
    for row in await session.scalars(query):
        launches[row.epoch].append(view_of(row, LaunchView))
    rows = await session.scalars(
        select(RunAttempt).where(RunAttempt.run_pk.in_(of_run)).order_by(RunAttempt.epoch)
    )
    return [_view(row, launches[row.epoch]) for row in rows]


def _view(row: RunAttempt, launches: list[LaunchView]) -> AttemptView:
    named = next((one for one in launches if one.external_id is not None), None)
    return view_of(
        row,
        AttemptView,
        claimed_at=row.intent_at,
        started_at=row.launched_at,
        application_id=None if named is None else named.external_id,
        link=None if named is None else named.link,
        launches=launches,
    )
