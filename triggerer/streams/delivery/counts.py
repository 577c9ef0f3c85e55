"""Counts the outcomes of a stream's messages over all of its groups.

Acked messages are not counted one by one, because counting would cost time for every message. Their number follows from
the ledger.
"""

from __future__ import annotations

from dataclasses import dataclass

from triggerer.abc import AdvanceOutcome
from triggerer.streams.delivery.group_state import GroupState
from triggerer.streams.delivery.lane import Decide, Entry


@dataclass(slots=True)
class StreamCounts:
    """The message counts of all groups that have ended, and the number of restarts."""

    consumed: int = 0
    advanced: int = 0
    rejected: int = 0
    failed: int = 0
    restarts: int = 0

    def add(self, state: GroupState) -> None:
        """Add the counts of a group that ends."""
        self.consumed += state.ledger.next_seq
        self.advanced += state.ledger.next_seq - state.outstanding
        self.rejected += state.rejected
        self.failed += state.failed


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
