"""What becomes of those that are behind in a log that has lost its end, and whose numbers are used again."""

from __future__ import annotations

from collections.abc import Hashable
from datetime import datetime
from typing import Any

from triggerer.domain.watchers.lane_positions import cut_after, cut_before, is_before
from triggerer.streams.catchup.backlogs.backlogs import Backlogs


def mark_cut(backlogs: Backlogs, lane: Hashable, incarnation: Any, now: datetime) -> None:
    """Set back to the cut whoever may have read in the lane what the log has lost.

    Who has not read so far may have been handed some of it: it begins again with what is not durable.

    Args:
        incarnation: Of a message that is about to be broadcast; it tells of a cut.
    """
    reached = backlogs.advanced_to.get(lane)
    if reached is not None and cut_before(reached, incarnation) is not None:
        del backlogs.advanced_to[lane]
    for backlog in list(backlogs.by_lane.get(lane, {}).values()):
        cut = cut_after(backlog.cursor, incarnation)
        if cut is None or (backlog.is_caught_up and not is_before(cut, backlog.cursor)):
            continue
        if is_before(cut, backlog.position):
            # What is there now it may miss, and nothing of where it stands from now on is durable.
            backlog.is_stored = False
        else:
            cut = backlog.position
        backlog.blocked = None
        backlogs.rewind_from(backlog, cut, backlog.reemit, now)
