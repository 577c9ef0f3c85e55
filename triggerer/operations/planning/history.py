"""Prepares the recorded events for a plan."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from triggerer.domain.assets import Asset
from triggerer.scheduler.replay import ClockSetBack, RecordedEvent
from triggerer.store.dags.snapshots import CLOCK_STEP
from triggerer.store.events.history import PastEvent


def recorded(
    past: Sequence[PastEvent], now: datetime
) -> tuple[list[RecordedEvent], ClockSetBack | None]:
    """Return the events with corrected timestamps, and a `ClockSetBack` if the clock was set back.

    An event with a timestamp in the future was recorded before the clock was set back. All future timestamps are moved
    back by the same duration. The latest of them then lies just before the event that was recorded next, or before
    `now` if there is none.
    """
    ahead = [number for number, one in enumerate(past) if one.timestamp > now + CLOCK_STEP]
    moved = {past[number].id for number in ahead}
    set_back, by = None, timedelta()
    if ahead:
        last = ahead[-1]
        at = past[last + 1].timestamp if last + 1 < len(past) else now
        set_back = ClockSetBack(past[last].id, at)
        # The two instants must differ, because a replay treats events with equal instants as one transaction.
        by = max(past[number].timestamp for number in ahead) - at + timedelta.resolution
    history = [
        RecordedEvent(
            one.id,
            Asset.identified(one.name, one.uri),
            one.timestamp - by if one.id in moved else one.timestamp,
            one.partition_key,
        )
        for one in past
    ]
    return history, set_back
