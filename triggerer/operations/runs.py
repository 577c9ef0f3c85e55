"""What a user can ask of a run."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.runs import RunState
from triggerer.errors import MoveRefused, UnknownRun
from triggerer.store.queries.execution.transitions import request_cancel
from triggerer.store.queries.listing.dag_runs import find_run
from triggerer.store.wakeups.signals import Signal, announce


async def cancel_run(session: AsyncSession, dag_id: str, run_id: str) -> RunState:
    """Cancel a run: at once while it is queued; otherwise its executor is told to stop it.

    Returns:
        `cancelled`; or `running`: its executor will end it.
    Raises:
        UnknownRun: There is no such run.
        MoveRefused: It has ended already.
    """
    run_pk = await find_run(session, dag_id, run_id)
    state = None if run_pk is None else await request_cancel(session, run_pk)
    if state is None:
        raise UnknownRun(dag_id, run_id)
    if state is RunState.CANCELLED:
        announce(session, Signal.RUNS_ENDED, dag_id)
    elif state is RunState.RUNNING:
        announce(session, Signal.RUNS_CANCELLED, str(run_pk))
    else:
        raise MoveRefused(f"the run {run_id!r} has ended already: {state}")
    return state
