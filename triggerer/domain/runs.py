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
    """Where a run stands; what may follow is `may_become`."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCESS = "success"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return not _MOVES[self]

    def may_become(self, state: RunState) -> bool:
        return state in _MOVES[self]


# A running run goes back to the queue when the executor that held it died: the next claim is a new attempt.
_MOVES: Final[dict[RunState, frozenset[RunState]]] = {
    RunState.QUEUED: frozenset({RunState.RUNNING, RunState.FAILED, RunState.CANCELLED}),
    RunState.RUNNING: frozenset(
        {RunState.QUEUED, RunState.SUCCESS, RunState.FAILED, RunState.CANCELLED}
    ),
    RunState.SUCCESS: frozenset(),
    RunState.FAILED: frozenset(),
    RunState.CANCELLED: frozenset(),
}

ACTIVE_STATES: Final = (RunState.QUEUED, RunState.RUNNING)


class TaskState(StrEnum):
    """Where the last try of a task stands."""

    RUNNING = "running"
    SUCCESS = "success"
    FAILED = "failed"
    CANCELLED = "cancelled"
    UPSTREAM_FAILED = "upstream_failed"
