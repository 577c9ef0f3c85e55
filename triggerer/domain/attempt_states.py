"""The states of a run's attempts and of their launches, and the legal moves between the states.

A launch is something that an attempt starts outside its process, such as a Spark application.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class AttemptState(StrEnum):
    """The state of one attempt, or of one launch. `may_become` has the legal next states."""

    INTENDED = "intended"
    """The attempt is stored, and has not begun yet."""
    LAUNCHING = "launching"
    """The attempt is being started, and may already be at work."""
    RUNNING = "running"
    UNKNOWN = "unknown"
    """The attempt has begun, and nobody can tell whether it is still at work. The next attempt waits."""
    SUCCESS = "success"
    FAILED = "failed"
    CANCELLED = "cancelled"
    KILLED = "killed"
    """The attempt was ended from outside, and its result does not count."""
    LOST = "lost"
    """The attempt is gone without a result: its executor died, or its cluster or server no longer knows it."""

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

# `INTENDED` may become a final state directly, because an attempt may end before the store learns that it began. A
# final state never changes, because the next attempt may already have begun.
_MOVES: Final[dict[AttemptState, frozenset[AttemptState]]] = {
    AttemptState.INTENDED: ENDS
    | {AttemptState.LAUNCHING, AttemptState.RUNNING, AttemptState.UNKNOWN},
    AttemptState.LAUNCHING: ENDS | {AttemptState.RUNNING, AttemptState.UNKNOWN},
    AttemptState.RUNNING: ENDS | {AttemptState.UNKNOWN},
    # The cluster or server answers again, and still knows the attempt.
    AttemptState.UNKNOWN: ENDS | {AttemptState.RUNNING},
    **{end: frozenset[AttemptState]() for end in ENDS},
}
