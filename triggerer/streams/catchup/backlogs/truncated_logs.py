"""Rewinds watchers that are behind in a log that has lost its newest messages (a cut).

New messages get the offsets of the lost messages. A watcher that has read the lost messages would skip these offsets.
"""

from __future__ import annotations

from collections.abc import Hashable
from datetime import datetime
from typing import Any

from triggerer.domain.watchers.lane_positions import cut_after, cut_before, is_before
from triggerer.streams.catchup.backlogs.backlogs import Backlogs


def mark_cut(backlogs: Backlogs, lane: Hashable, incarnation: Any, now: datetime) -> None:
    """Rewind the watchers that are affected by a cut of this lane's log.

    - A watcher that has caught up, and has read nothing after the cut, is not rewound.
    - A watcher whose position is after the cut is rewound to the cut.
    - Any other watcher may have messages in memory that the log has lost, so it reads again from its position.

    Args:
        incarnation: The incarnation of a message that is about to be broadcast. It tells where the log was cut.
    """
    reached = backlogs.advanced_to.get(lane)
    if reached is not None and cut_before(reached, incarnation) is not None:
        del backlogs.advanced_to[lane]
    for backlog in list(backlogs.by_lane.get(lane, {}).values()):
        cut = cut_after(backlog.cursor, incarnation)
        if cut is None or (backlog.is_caught_up and not is_before(cut, backlog.cursor)):
            continue
        if is_before(cut, backlog.position):
            # The stored position is after the cut, so after a crash the watcher would miss the new messages. The broker
            # must not advance until the cut is stored as the position.
            backlog.is_stored = False
        else:
            cut = backlog.position
        backlog.blocked = None
        backlogs.rewind_from(backlog, cut, backlog.reemit, now)
