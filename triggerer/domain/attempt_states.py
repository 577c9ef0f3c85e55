"""The states of a run's attempts and of what an attempt started elsewhere, and the legal moves between them."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class AttemptState(StrEnum):
    """The state of one attempt, or of one launch. `may_become` has the legal next states."""

    INTENDED = "intended"
    """Stored, and not begun yet."""
    LAUNCHING = "launching"
    """It begins now. It may already work."""
    RUNNING = "running"
    UNKNOWN = "unknown"
    """It has begun, and nobody can tell whether it still works. It blocks the next attempt."""
    SUCCESS = "success"
    FAILED = "failed"
    CANCELLED = "cancelled"
    KILLED = "killed"
    """Somebody ended it from outside, and its result does not count."""
    LOST = "lost"
    """It is gone without a result: its executor died, or its place no longer knows it."""

    @property
    def has_ended(self) -> bool:
        return self in ENDS

    def may_become(self, state: AttemptState) -> bool:
        return state in _MOVES[self]


ENDS: Final = frozenset(
    {
        AttemptState.SUCCESS,
        AttemptState.FAILED,
        AttemptState.CANCELLED,
        AttemptState.KILLED,
        AttemptState.LOST,
    }
)

# A short attempt ends before anybody has stored that it began. An end is final, because the next attempt relies on it.
_MOVES: Final[dict[AttemptState, frozenset[AttemptState]]] = {
    AttemptState.INTENDED: ENDS
    | {AttemptState.LAUNCHING, AttemptState.RUNNING, AttemptState.UNKNOWN},
    AttemptState.LAUNCHING: ENDS | {AttemptState.RUNNING, AttemptState.UNKNOWN},
    AttemptState.RUNNING: ENDS | {AttemptState.UNKNOWN},
    # It was found again.
    AttemptState.UNKNOWN: ENDS | {AttemptState.RUNNING},
    **{end: frozenset[AttemptState]() for end in ENDS},
}
