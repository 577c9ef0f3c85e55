"""Stores which ended runs still need their DAG's success or failure callback, and which executor calls it.

The transaction that ends a run also marks its callback as due. An executor claims the call. If that executor dies, the
call becomes due again. The caller of these functions commits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import ColumnElement, exists, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.attempts import CallbackOrder, RunOrder
from triggerer.domain.run_logs import log_path
from triggerer.domain.runs import RunState
from triggerer.store.database.transactions import database_now
from triggerer.store.database.wakeups.signals import Signal, announce
from triggerer.store.schema.models import Dag, DagRun, Instance

MAX_CALLS: Final = 3
"""A callback is not called again after this number of executors have died during the call: it may have killed them."""

_DUE: Final = "due"
_RUNNING: Final = "running"


async def mark_due(session: AsyncSession, run_pks: Sequence[int]) -> None:
    """Mark the callbacks of these ended runs as due, and announce them. Skip runs that have no callback to call."""
    if not run_pks:
        return
    # A text search is safe: `callbacks` contains only the names of states.
    wants = exists().where(Dag.dag_id == DagRun.dag_id, Dag.callbacks.contains(DagRun.state))
    ended = DagRun.state.in_((RunState.SUCCESS.value, RunState.FAILED.value))
    found = await session.scalars(
        update(DagRun)
        .where(DagRun.id.in_(run_pks), ended, wants)
        .values(callback=_DUE, callback_executor=None, callback_attempts=0)
        .returning(DagRun.dag_id)
        .execution_options(synchronize_session=False)
    )
    if dag_ids := set(found):
        announce(session, Signal.CALLBACKS_DUE, *dag_ids)


async def claim_call(
    session: AsyncSession, *, executor: str, log_home: str
) -> CallbackOrder | None:
    """Claim the callbacks of the oldest run whose callbacks are due. None: no callback is due."""
    row = (
        await session.execute(
            select(DagRun, Dag.path, Dag.callbacks)
            .join(Dag, Dag.dag_id == DagRun.dag_id)
            .where(DagRun.callback.is_not(None), DagRun.callback == _DUE)
            .order_by(DagRun.id)
            .limit(1)
            .with_for_update(skip_locked=True, of=DagRun)
        )
    ).first()
    if row is None:
        return None
    run, path, callbacks = row
    run.callback, run.callback_executor = _RUNNING, executor
    run.callback_attempts += 1
    order = RunOrder(
        dag_id=run.dag_id,
        run_id=run.run_id,
        run_type=run.run_type,
        attempt=run.attempt,
        queued_at=run.queued_at,
        run_after=run.run_after,
        logical_date=run.logical_date,
        data_interval_start=run.data_interval_start,
        data_interval_end=run.data_interval_end,
        params=run.params,
        partition_key=run.partition_key,
        run_pk=run.id,
        path=path,
        needs_spark=False,
        log_path=log_path(log_home, run.dag_id, run.run_id),
        callbacks=callbacks,
    )
    return CallbackOrder(order, RunState(run.state), run.error, run.callback_attempts)


async def mark_called(
    session: AsyncSession, call: CallbackOrder, *, executor: str, is_done: bool
) -> None:
    """Store the outcome of a call, unless another executor has claimed the call since, or the run was queued again.

    Args:
        is_done: False if the call was interrupted. The call then becomes due again, and does not count towards
            `MAX_CALLS`.
    """
    await session.execute(
        update(DagRun)
        .where(
            DagRun.id == call.run.run_pk,
            DagRun.callback == _RUNNING,
            DagRun.callback_executor == executor,
            DagRun.callback_attempts == call.calls,
        )
        .values(
            callback=None if is_done else _DUE,
            callback_attempts=call.calls if is_done else call.calls - 1,
        )
    )


async def recover_calls(session: AsyncSession, *, executor: str, is_alone: bool) -> list[str]:
    """Make the calls of dead executors due again. Return the ids of the runs whose calls are given up.

    Args:
        executor: The executor that calls this function. This executor is not executing any callback now, so a stored
            call with its id was interrupted. Such a call does not count towards `MAX_CALLS`, because this executor has
            not died.
        is_alone: True if no other executor can be alive. Then all calls that are under way become due again.
    """
    gone: list[ColumnElement[bool]] = []
    if not is_alone:
        living = select(Instance.id).where(Instance.expires_at > await database_now(session))
        is_gone = or_(DagRun.callback_executor.is_(None), DagRun.callback_executor.not_in(living))
        gone.append(or_(is_gone, DagRun.callback_executor == executor))
    rows = await session.scalars(
        select(DagRun)
        .where(DagRun.callback.is_not(None), DagRun.callback == _RUNNING, *gone)
        .with_for_update(skip_locked=True)
    )
    given_up = []
    for run in rows:
        if run.callback_executor == executor:
            run.callback_attempts -= 1
        run.callback = _DUE if run.callback_attempts < MAX_CALLS else None
        if run.callback is None:
            given_up.append(run.run_id)
    return given_up
