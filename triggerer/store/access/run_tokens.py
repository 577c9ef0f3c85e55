"""The API tokens of runs. Each attempt of a run has its own token.

A token is signed with the key that all services share. So any service can check the token without a stored copy. A
token is valid while its attempt is running, until a user asks to cancel the run.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass
from typing import Final

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.runs import RunState
from triggerer.store.access.secrets import RUN_PREFIX
from triggerer.store.schema.models import Dag, DagRun

_FORM: Final = re.compile(
    rf"{RUN_PREFIX}_([0-9]{{1,18}})-([0-9]{{1,9}})-([0-9]{{1,18}})_([0-9a-f]{{64}})"
)


@dataclass(frozen=True, slots=True)
class KnownRun:
    """The run and the attempt that a valid token belongs to."""

    run_pk: int
    dag_id: str
    run_id: str
    attempt: int


def run_token(key: bytes, run_pk: int, attempt: int, epoch: int) -> str:
    """Return the token of an attempt, signed with `key` (see `triggerer.store.access.service_key`)."""
    return f"{RUN_PREFIX}_{run_pk}-{attempt}-{epoch}_{_mac(key, run_pk, attempt, epoch)}"


async def find_run_token(
    session: AsyncSession, key: bytes, token: str, *, locks: bool = False
) -> KnownRun | None:
    """Return the run and attempt of a token, or None if the token is not valid.

    A token is not valid if its signature is wrong, its attempt is over, or a user asked to cancel the run.

    Args:
        locks: True to lock the run's row, so that the run cannot end or be queued again before the caller commits.
    """
    read = _FORM.fullmatch(token)
    if read is None:
        return None
    run_pk, attempt, epoch = (int(number) for number in read.groups()[:3])
    if not hmac.compare_digest(_mac(key, run_pk, attempt, epoch), read[4]):
        return None
    query = select(DagRun.id, DagRun.dag_id, DagRun.run_id, DagRun.attempt).where(
        DagRun.id == run_pk,
        DagRun.attempt == attempt,
        DagRun.epoch == epoch,
        DagRun.state == RunState.RUNNING.value,
        DagRun.cancel_requested.is_(False),
    )
    if locks:
        query = query.with_for_update()
    found = (await session.execute(query)).one_or_none()
    return None if found is None else KnownRun(*found)


def _mac(key: bytes, run_pk: int, attempt: int, epoch: int) -> str:
    signed = f"run:{run_pk}-{attempt}-{epoch}".encode()
    return hmac.new(key, signed, hashlib.sha256).hexdigest()


async def outlets_of(session: AsyncSession, dag_id: str) -> dict[str, str]:
    """Map the name and the URI of each outlet of a DAG to the id of the first task with this outlet."""
    tasks = await session.scalar(select(Dag.tasks).where(Dag.dag_id == dag_id)) or []
    found: dict[str, str] = {}
    for task in tasks:
        for outlet in task["outlets"]:
            asset = outlet.get("asset", outlet)
            for key in (asset.get("uri"), asset.get("name")):
                if key is not None:
                    found.setdefault(key, task["task_id"])
    return found
