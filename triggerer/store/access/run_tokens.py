"""The tokens of runs. No clock ends them: one counts while its attempt is the run's present one, and the run runs."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.runs import RunState
from triggerer.store.access.secrets import digest_of, new_run_token
from triggerer.store.schema.models import Dag, DagRun, RunToken


@dataclass(frozen=True, slots=True)
class KnownRun:
    """The attempt whose token was found."""

    run_pk: int
    dag_id: str
    run_id: str
    attempt: int


async def create_run_token(session: AsyncSession, run_pk: int, attempt: int) -> str:
    """Store a new token for an attempt, in place of the tokens of the run's former attempts; return it."""
    await session.execute(delete(RunToken).where(RunToken.run_pk == run_pk))
    token = new_run_token()
    session.add(RunToken(run_pk=run_pk, attempt=attempt, digest=digest_of(token)))
    await session.flush()
    return token


async def find_run_token(
    session: AsyncSession, digest: str, *, locks: bool = False
) -> KnownRun | None:
    """Return the attempt of a token, if it is the run's present one and the run runs.

    Args:
        digest: The token's `digest_of`.
        locks: True in a transaction that changes something: the run cannot end, or begin again, before the commit.
    """
    query = (
        select(DagRun.id, DagRun.dag_id, DagRun.run_id, DagRun.attempt)
        .join(RunToken, RunToken.run_pk == DagRun.id)
        .where(
            RunToken.digest == digest,
            RunToken.attempt == DagRun.attempt,
            DagRun.state == RunState.RUNNING.value,
            DagRun.cancel_requested.is_(False),
        )
    )
    if locks:
        query = query.with_for_update(of=DagRun)
    found = (await session.execute(query)).one_or_none()
    return None if found is None else KnownRun(*found)


async def outlets_of(session: AsyncSession, dag_id: str) -> dict[str, str]:
    """Return the assets that the tasks of a DAG may update: the task's id by the asset's name and by its URI."""
    tasks = await session.scalar(select(Dag.tasks).where(Dag.dag_id == dag_id)) or []
    found: dict[str, str] = {}
    for task in tasks:
        for outlet in task["outlets"]:
            asset = outlet.get("asset", outlet)
            for key in (asset.get("uri"), asset.get("name")):
                if key is not None:
                    found.setdefault(key, task["task_id"])
    return found
