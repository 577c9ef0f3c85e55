"""The states of runs and tasks, and the legal moves between them."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class RunType(StrEnum):
    """Why a run exists; the first part of its id."""

    SCHEDULED = "scheduled"
    ASSET_TRIGGERED = "asset_triggered"
    MANUAL = "manual"
    BACKFILL = "backfill"


class RunState(StrEnum):
    """The state of a run. `may_become` has the legal next states."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCESS = "success"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return self not in ACTIVE_STATES

    def may_become(self, state: RunState) -> bool:
        return state in _MOVES[self]


# A running run is queued again if its executor died, for instance. An ended run is queued again if a user retries it.
_MOVES: Final[dict[RunState, frozenset[RunState]]] = {
    RunState.QUEUED: frozenset({RunState.RUNNING, RunState.FAILED, RunState.CANCELLED}),
    RunState.RUNNING: frozenset(
        {RunState.QUEUED, RunState.SUCCESS, RunState.FAILED, RunState.CANCELLED}
    ),
    RunState.SUCCESS: frozenset({RunState.QUEUED}),
    RunState.FAILED: frozenset({RunState.QUEUED}),
    RunState.CANCELLED: frozenset({RunState.QUEUED}),
}

ACTIVE_STATES: Final = (RunState.QUEUED, RunState.RUNNING)


class TaskState(StrEnum):
    """The state of a task's last try. `may_become` has the legal next states."""

    RUNNING = "running"
    SUCCESS = "success"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"
    """The task raised `SkipTask`, or an upstream task was skipped. No outlet is updated."""
    UPSTREAM_FAILED = "upstream_failed"

    @property
    def is_final(self) -> bool:
        return self is not TaskState.RUNNING

    def may_become(self, state: TaskState) -> bool:
        return state in _TASK_MOVES[self]


# A failed try that is followed by another try does not change the state: it stays `running`.
_TASK_MOVES: Final[dict[TaskState, frozenset[TaskState]]] = {
    TaskState.RUNNING: frozenset(TaskState) - {TaskState.UPSTREAM_FAILED},
    # A task that has ended begins again when its run is retried or cleared, or when the run's executor died.
    **{
        ended: frozenset({TaskState.RUNNING, TaskState.SKIPPED, TaskState.UPSTREAM_FAILED})
        for ended in TaskState
        if ended is not TaskState.RUNNING
    },
}
