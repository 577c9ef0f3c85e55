"""Rewinds the watchers that are behind in a log that lost its end, and whose numbers are used again."""

from __future__ import annotations

from collections.abc import Hashable
from datetime import datetime
from typing import Any

from triggerer.domain.watchers.lane_positions import cut_after, cut_before, is_before
from triggerer.streams.catchup.backlogs.backlogs import Backlogs


def mark_cut(backlogs: Backlogs, lane: Hashable, incarnation: Any, now: datetime) -> None:
    """Rewind to the cut each watcher that may have read messages of this lane which the log has lost.

    A watcher that has not read up to the cut may have lost messages in memory. It reads again what is not durable.

    Args:
        incarnation: The incarnation of a message that is about to be broadcast. It tells of a cut.
    """
    reached = backlogs.advanced_to.get(lane)
    if reached is not None and cut_before(reached, incarnation) is not None:
        del backlogs.advanced_to[lane]
    for backlog in list(backlogs.by_lane.get(lane, {}).values()):
        cut = cut_after(backlog.cursor, incarnation)
        if cut is None or (backlog.is_caught_up and not is_before(cut, backlog.cursor)):
            continue
        if is_before(cut, backlog.position):
            # The watcher would miss the new messages there, and its position is not durable until it is stored again.
            backlog.is_stored = False
        else:
            cut = backlog.position
        backlog.blocked = None
        backlogs.rewind_from(backlog, cut, backlog.reemit, now)
