"""Recovers orphans: running runs whose executor died."""

from __future__ import annotations

import typing
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import ColumnElement, Table, and_, case, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.attempt_states import AttemptState
from triggerer.domain.attempts import Repeat
from triggerer.domain.runs import RunState, TaskState
from triggerer.store.database.script import Script, perform
from triggerer.store.database.transactions import database_now
from triggerer.store.runs.attempts.steps import leave_attempts
from triggerer.store.runs.callbacks import mark_due
from triggerer.store.runs.state_conditions import RUNNING
from triggerer.store.schema.models import DagRun, Instance, TaskRun

MAX_ATTEMPTS: Final = 3
"""A run fails after executors have died in this number of its attempts, because the run may have killed them."""

_RUNS: Final = typing.cast(Table, DagRun.__table__)
_TASKS: Final = typing.cast(Table, TaskRun.__table__)
# True if the attempt is not the run's first, and no worker has started it. A first attempt always
# counts as started, because its claim already sets `started_at` (see `begin_run`).
_NEVER_BEGAN: Final = and_(_RUNS.c.attempt > 1, _RUNS.c.started_at.is_(None))


@dataclass(frozen=True, slots=True)
class Recovered:
    """The outcome for the runs whose executor died."""

    requeued: list[str]
    """The DAG id of each run that was queued again."""
    given_up: list[str]
    """The DAG id of each run that was given up."""


async def recover_orphans(session: AsyncSession, *, executor: str, is_alone: bool) -> Recovered:
    """Queue the running runs of dead executors again. A run fails if executors died in `MAX_ATTEMPTS` of its attempts.

    An attempt that no worker had started cannot have killed the executor, so it does not count. The next attempt then
    gets the same number, and a higher epoch. But a first attempt always counts, because its claim already stores a
    start.

    A dead executor's workers are gone, see `triggerer.executor.lease.lease_guard`. But their launches, such as a Spark
    Connect session, may still be at work. So an attempt with open launches becomes `unknown`, and any other attempt
    becomes `lost`.

    Args:
        executor: The executor that calls this function. Its own runs are no orphans.
        is_alone: True if SQLite is locked for this process. Then no other executor can be alive, and the runs of all
            other executors are orphans. False: an executor is dead if its instance was deregistered or has expired.
    """
    gone: list[ColumnElement[bool]] = [
        or_(_RUNS.c.executor.is_(None), _RUNS.c.executor != executor)
    ]
    if not is_alone:
        living = select(Instance.id).where(Instance.expires_at > await database_now(session))
        gone.append(or_(_RUNS.c.executor.is_(None), _RUNS.c.executor.not_in(living)))
    orphans = (
        await session.execute(
            select(
                _RUNS.c.id,
                _RUNS.c.dag_id,
                _RUNS.c.attempt,
                _RUNS.c.epoch,
                _RUNS.c.executor,
                _RUNS.c.again,
                _NEVER_BEGAN.label("never_began"),
            )
            .where(RUNNING, *gone)
            .with_for_update(skip_locked=True)
        )
    ).all()
    await perform(session, _leave(orphans))
    again = [row for row in orphans if _counted(row) < MAX_ATTEMPTS or row.never_began]
    if again:
        await session.execute(
            update(_RUNS)
            .where(_RUNS.c.id.in_([row.id for row in again]))
            .values(
                state=RunState.QUEUED.value,
                started_at=None,
                epoch=_RUNS.c.epoch + 1,
                attempt=case((_NEVER_BEGAN, _RUNS.c.attempt - 1), else_=_RUNS.c.attempt),
            )
        )
    spent = [row for row in orphans if _counted(row) >= MAX_ATTEMPTS and not row.never_began]
    now = datetime.now(UTC)
    for row in spent:
        await _give_up(session, row, now)
    await mark_due(session, [row.id for row in spent])
    return Recovered([row.dag_id for row in again], [row.dag_id for row in spent])


def _leave(orphans: Sequence[Any]) -> Script[None]:
    epochs = {row.id: row.epoch for row in orphans}
    reasons = {row.id: f"its executor {row.executor} died" for row in orphans}
    return leave_attempts(epochs, AttemptState.LOST, reasons)


async def _give_up(session: AsyncSession, row: Any, now: datetime) -> None:
    """End a run and its running tasks as failed."""
    error = (
        f"given up after {_counted(row)} attempts: each time the executor died during the run"
        f" (the last one was {row.executor})"
    )
    ended = {"state": RunState.FAILED.value, "ended_at": now}
    await session.execute(
        update(_RUNS)
        .where(_RUNS.c.id == row.id)
        .values(**ended, error=error, exit_code=None, epoch=row.epoch + 1)
    )
    await session.execute(
        update(_TASKS)
        .where(_TASKS.c.run_pk == row.id, _TASKS.c.state == TaskState.RUNNING.value)
        .values(ended)
    )


def _counted(row: Any) -> int:
    """Return the number of attempts that count for `MAX_ATTEMPTS`: those after `Repeat.after_attempt`."""
    return int(row.attempt) - Repeat.from_json(row.again).after_attempt
