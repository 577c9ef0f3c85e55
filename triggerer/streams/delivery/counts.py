"""Counts the outcomes of a stream's messages over all of its groups.

Acked messages are not counted one by one, because counting would cost time for every message. Their number is computed
from the ledger.
"""

from __future__ import annotations

from typing import NamedTuple

from triggerer.abc import AdvanceOutcome
from triggerer.streams.delivery.group_state import GroupState
from triggerer.streams.delivery.lane import Decide, Entry


class Counted(NamedTuple):
    """Numbers of messages."""

    consumed: int = 0
    advanced: int = 0
    rejected: int = 0
    failed: int = 0


class StreamCounts:
    """The message counts over all groups of a stream, and the number of restarts. No number ever falls.

    `read` may be called from another thread. So a single assignment replaces the counts and the group.
    """

    def __init__(self) -> None:
        self.restarts = 0
        self._now: tuple[Counted, GroupState | None] = (Counted(), None)
        """The counts of the groups that have ended, and the group that has begun."""

    def begin(self, state: GroupState) -> None:
        """Count a new group."""
        self._now = (self.read(), state)

    def end(self) -> None:
        """Keep the counts of the group, which has ended."""
        self._now = (self.read(), None)

    def read(self) -> Counted:
        """Return the counts of all groups, including the group that has begun."""
        before, state = self._now
        if state is None:
            return before
        consumed = state.ledger.next_seq
        return Counted(
            before.consumed + consumed,
            before.advanced + max(consumed - state.outstanding, 0),
            before.rejected + state.rejected,
            before.failed + state.failed,
        )


def counting(state: GroupState, decide: Decide) -> Decide:
    """Return a function that decides like `decide`, and counts the failed and the rejected messages."""

    def decide_and_count(entry: Entry, outcome: AdvanceOutcome) -> AdvanceOutcome | None:
        decided = decide(entry, outcome)
        if decided is not None:
            if decided.failed:
                state.failed += 1
            elif decided.rejected:
                state.rejected += 1
        return decided

    return decide_and_count
