"""Queues a run again if it could not begin: its file does not load, or an earlier attempt may still run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import structlog

from triggerer.domain.attempts import RunEnd
from triggerer.domain.runs import RunState
from triggerer.store.database.script import Step
from triggerer.store.database.transactions import Database
from triggerer.store.runs.attempts.steps import block_attempt
from triggerer.store.runs.held import hold_attempt
from triggerer.store.runs.results import AttemptUpdate

_log = structlog.get_logger(__name__)


async def hold_unbegun(
    database: Database, executor: str, group: Sequence[AttemptUpdate]
) -> list[AttemptUpdate]:
    """Put each run that could not begin back into the queue. Hold it there, so that no executor claims it for a while.

    Returns:
        The updates that the caller must store. The updates of held runs are left out.

    Raises:
        Errors of `Database.perform_steps`. The caller can repeat the call.
    """
    unbegun = [update for update in group if update.is_unbegun and update.end is not None]
    if not unbegun:
        return list(group)
    answers = await database.perform_steps([_hold(executor, update) for update in unbegun])
    held = [update for update, rows in zip(unbegun, answers, strict=True) if rows]
    for update in held:
        _log.warning(
            "a run waits, because a former attempt may still work"
            if update.is_blocked
            else "a run waits, because its file does not load",
            dag=update.order.dag_id,
            run=update.order.run_id,
            file=update.order.path,
        )
    return [_ended(update) for update in group if update not in held]


def _hold(executor: str, update: AttemptUpdate) -> Step:
    assert update.end is not None
    reason = update.end.error or ""
    if update.is_blocked:
        return block_attempt(executor=executor, order=update.order, reason=reason)
    return hold_attempt(executor=executor, order=update.order, reason=reason)


def _ended(update: AttemptUpdate) -> AttemptUpdate:
    """Return the update to store for a run that was not held.

    A run is blocked if an earlier attempt may still be at work. The store refuses to hold a blocked
    run in two cases:

    - A user wants the run cancelled. Then the returned update ends the run as cancelled.
    - Another attempt has the run. Then the store ignores the returned update.
    """
    if not update.is_blocked or update.end is None:
        return update
    cancelled = RunEnd(RunState.CANCELLED, update.end.ended_at, "cancelled")
    return replace(update, end=cancelled)
