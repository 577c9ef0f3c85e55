"""Finds runs by the names of their logs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.run_logs import log_path
from triggerer.domain.runs import RunState
from triggerer.store.schema.models import DagRun

_PAGE: Final = 5_000


class LoggedRun(NamedTuple):
    """A run, found by its log."""

    dag_id: str
    run_id: str
    state: str

    @property
    def is_ended(self) -> bool:
        return RunState(self.state).is_final


async def runs_by_log(session: AsyncSession, names: Collection[str]) -> dict[str, LoggedRun]:
    """Return the runs that have these logs, by the name of the log.

    All runs are read, in pages. The ids of a run cannot be computed from the name of its log, because some characters
    are replaced in the name.

    Args:
        names: The logs as `<dag>/<run>.log`, below the folder `logs`.
    """
    found: dict[str, LoggedRun] = {}
    after = 0
    while names:
        rows = await session.execute(
            select(DagRun.id, DagRun.dag_id, DagRun.run_id, DagRun.state)
            .where(DagRun.id > after)
            .order_by(DagRun.id)
            .limit(_PAGE)
        )
        page = rows.all()
        if not page:
            break
        after = page[-1].id
        for _, dag_id, run_id, state in page:
            name = log_path("", dag_id, run_id).removeprefix("/logs/")
            if name in names:
                found[name] = LoggedRun(dag_id, run_id, state)
    return found
