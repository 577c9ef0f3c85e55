"""The operations on single runs: cancel, retry, clear and resolve."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.actors import Actor
from triggerer.domain.runs import RunState, TaskState
from triggerer.errors import DagError, MoveRefused, TriggererError, UnknownDag, UnknownRun
from triggerer.nearest import hint
from triggerer.operations.audit import Action, record
from triggerer.store.dags.listing import list_dags
from triggerer.store.database.wakeups.signals import Signal, announce
from triggerer.store.runs.attempts.resolving import resolve_as_lost
from triggerer.store.runs.listing import find_run, newest_run_id
from triggerer.store.runs.repeat import LockedRun, lock_run, queue_again
from triggerer.store.runs.transitions import request_cancel


async def newest_run(session: AsyncSession, dag_id: str) -> str:
    """Return the id of the DAG's newest run, which `runs list --dag` shows first.

    Raises:
        UnknownDag: There is no such DAG.
        TriggererError: The DAG has no run.
    """
    run_id = await newest_run_id(session, dag_id)
    if run_id is None:
        if not await list_dags(session, dag=dag_id, limit=1):
            raise UnknownDag(dag_id)
        raise TriggererError(
            f"the DAG {dag_id!r} has no run", hint=f"triggerer dags trigger {dag_id} queues one"
        )
    return run_id


async def cancel_run(session: AsyncSession, actor: Actor, dag_id: str, run_id: str) -> RunState:
    """Cancel a queued run at once, or make the executor of a running run stop it.

    Returns:
        `cancelled`, or `running` if the executor must still stop the run.
    Raises:
        UnknownRun: There is no such run.
        MoveRefused: The run has succeeded or failed already.
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
    after = {"state": state.value, "cancel_requested": True}
    await record(session, actor, Action.RUN_CANCEL, f"{dag_id} {run_id}", after=after)
    return state


async def retry_run(session: AsyncSession, actor: Actor, dag_id: str, run_id: str) -> None:
    """Queue a failed or cancelled run for another attempt, even if its DAG is paused.

    A task that succeeded or was skipped is executed again only if another task needs its result. No event is emitted
    twice.

    Raises:
        UnknownRun: There is no such run.
        MoveRefused: The run has not ended, or has succeeded.
        DagError: The DAG is gone from its file.
    """
    run = await _lock(session, dag_id, run_id)
    if run.state is RunState.SUCCESS:
        raise MoveRefused(
            f"the run {run_id!r} has succeeded", hint="triggerer runs clear runs it again"
        )
    done = (TaskState.SUCCESS, TaskState.SKIPPED)
    kept = {task_id: state for task_id, state in run.tasks.items() if state in done}
    await _queue(session, dag_id, run, kept, run.repeat.cleared)
    await _record(session, actor, Action.RUN_RETRY, f"{dag_id} {run_id}", run)


async def resolve_run(session: AsyncSession, actor: Actor, dag_id: str, run_id: str) -> list[int]:
    """Mark a run's attempts in the state `unknown` as lost, because an operator knows that they have ended.

    The next attempt of the run need not wait for them any longer.

    Returns:
        The numbers of the attempts that are lost now.
    Raises:
        UnknownRun: There is no such run.
        MoveRefused: No attempt of the run has the state `unknown`.
    """
    resolved = await resolve_as_lost(session, dag_id, run_id)
    if resolved is None:
        raise UnknownRun(dag_id, run_id)
    if not resolved.attempts:
        raise MoveRefused(
            f"no attempt of the run {run_id!r} is unknown",
            hint=f"triggerer runs show {dag_id} {run_id} lists its attempts",
        )
    if resolved.state is RunState.QUEUED:
        announce(session, Signal.RUNS_QUEUED, dag_id)
    await record(
        session,
        actor,
        Action.RUN_RESOLVE,
        f"{dag_id} {run_id}",
        before={"attempts": resolved.attempts, "state": "unknown"},
        after={"attempts": resolved.attempts, "state": "lost"},
    )
    return resolved.attempts


async def clear_run(
    session: AsyncSession,
    actor: Actor,
    dag_id: str,
    run_id: str,
    *,
    tasks: Collection[str] = (),
) -> list[str]:
    """Queue an ended run for another attempt, as if these tasks had not been executed.

    The tasks emit new events, so DAGs that wait for their assets run again. The run keeps the events that it took.

    Args:
        tasks: Clear these tasks and all tasks that wait for them. Empty: all tasks.
    Returns:
        The ids of the cleared tasks, in the order of the DAG.
    Raises:
        UnknownRun: There is no such run.
        MoveRefused: The run has not ended.
        DagError: The DAG is gone from its file, or has no such task.
    """
    run = await _lock(session, dag_id, run_id)
    check_tasks(dag_id, run.definition, tasks)
    names = [task["task_id"] for task in run.definition]
    cleared = _with_downstream(run.definition, tasks) if tasks else set(names)
    kept = {task_id: state for task_id, state in run.tasks.items() if task_id not in cleared}
    if not tasks:
        # Also drop the stored results of tasks that the file no longer has.
        kept = {}
    counts = dict(run.repeat.cleared)
    # A task that is gone from the file may come back. Count it as cleared too, so that its next output gets a new
    # token.
    gone = set() if tasks else {*run.tasks, *counts}
    for task_id in cleared | gone:
        counts[task_id] = counts.get(task_id, 0) + 1
    await _queue(session, dag_id, run, kept, counts)
    ordered = [task_id for task_id in names if task_id in cleared]
    await _record(session, actor, Action.RUN_CLEAR, f"{dag_id} {run_id}", run, tasks=ordered)
    return ordered


def refuse_stale(dag_id: str, *, is_stale: bool, path: str) -> None:
    """Check that the DAG is still in its file.

    Raises:
        DagError: The DAG is gone from its file.
    """
    if is_stale:
        raise DagError(f"the DAG {dag_id!r} is gone from its file {path}")


def check_tasks(
    dag_id: str, definition: Sequence[Mapping[str, Any]], tasks: Collection[str]
) -> None:
    """Check that the DAG has all of these tasks.

    Raises:
        DagError: The DAG lacks a task.
    """
    names = [task["task_id"] for task in definition]
    if unknown := sorted(set(tasks) - set(names)):
        raise DagError(
            f"the DAG {dag_id!r} has no task {unknown[0]!r}", hint=hint(unknown[0], names)
        )


async def _lock(session: AsyncSession, dag_id: str, run_id: str) -> LockedRun:
    run = await lock_run(session, dag_id, run_id)
    if run is None:
        raise UnknownRun(dag_id, run_id)
    if not run.state.is_final:
        raise MoveRefused(
            f"the run {run_id!r} is {run.state}", hint="triggerer runs cancel ends it"
        )
    refuse_stale(dag_id, is_stale=run.is_stale, path=run.path)
    return run


async def _queue(
    session: AsyncSession,
    dag_id: str,
    run: LockedRun,
    kept: Mapping[str, TaskState],
    cleared: Mapping[str, int],
) -> None:
    assert run.state.may_become(RunState.QUEUED)
    await queue_again(session, run, kept=kept, cleared=cleared)
    announce(session, Signal.RUNS_QUEUED, dag_id)


async def _record(
    session: AsyncSession, actor: Actor, action: Action, subject: str, run: LockedRun, **more: Any
) -> None:
    before = {"state": run.state.value, "attempt": run.attempt}
    after = {"state": RunState.QUEUED.value, **more}
    await record(session, actor, action, subject, before=before, after=after)


def _with_downstream(definition: Sequence[Mapping[str, Any]], tasks: Collection[str]) -> set[str]:
    """Return these tasks and all tasks downstream of them. `definition` must be in the order of execution."""
    found = set(tasks)
    for task in definition:
        if not found.isdisjoint(task["upstream"]):
            found.add(task["task_id"])
    return found
