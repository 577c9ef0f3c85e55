"""Runs at instants from a list."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from triggerer.domain.timetables.base import (
    DagRunInfo,
    DataInterval,
    TimeRestriction,
    checked_instant,
    in_utc,
)
from triggerer.domain.timetables.clock import now
from triggerer.domain.timetables.ticks import HasTicks


@dataclass(frozen=True, slots=True)
class EventsTimetable(HasTicks):
    """A run at each instant of a list. The data interval starts and ends at the instant.

    Without catch-up, past instants get no run.

    Args:
        event_dates: Aware instants in any order. Repetitions are ignored.
        restrict_to_events: True: a manual run covers the last instant of the list that has passed, or the first instant
            if none has passed. False: a manual run covers the moment at which it is triggered.
        description: A text for people; None: the number of instants, the first and the last.
    Raises:
        DagError: A value is no aware datetime.
    """

    event_dates: tuple[datetime, ...]
    restrict_to_events: bool = False
    label: str | None = field(default=None, kw_only=True)

    def __init__(
        self,
        event_dates: Iterable[datetime],
        restrict_to_events: bool = False,
        *,
        description: str | None = None,
    ) -> None:
        dates = sorted({checked_instant(one, "an event's date") for one in event_dates})
        object.__setattr__(self, "event_dates", tuple(dates))
        object.__setattr__(self, "restrict_to_events", bool(restrict_to_events))
        object.__setattr__(self, "label", description)

    @property
    def description(self) -> str:  # type: ignore[override]
        if self.label is not None:
            return self.label
        if not self.event_dates:
            return "no events"
        first, last = self.event_dates[0].isoformat(), self.event_dates[-1].isoformat()
        return f"{self.summary} between {first} and {last}"

    @property
    def summary(self) -> str:
        return self.label or f"{len(self.event_dates)} events"

    def next_dagrun_info(
        self,
        *,
        last_automated_data_interval: DataInterval | None,
        restriction: TimeRestriction,
    ) -> DagRunInfo | None:
        last, restriction = in_utc(last_automated_data_interval, restriction)
        position = 0
        if restriction.earliest is not None:
            position = bisect_left(self.event_dates, restriction.earliest)
        if not restriction.catchup:
            position = max(position, bisect_left(self.event_dates, now()))
        if last is not None:
            position = max(position, bisect_right(self.event_dates, last.end))
        if position == len(self.event_dates):
            return None
        event = self.event_dates[position]
        if restriction.latest is not None and event > restriction.latest:
            return None
        return DagRunInfo.exact(event)

    def infer_manual_data_interval(self, *, run_after: datetime) -> DataInterval:
        run_after = checked_instant(run_after, "run_after")
        if not self.restrict_to_events or not self.event_dates:
            return DataInterval.exact(run_after)
        past = bisect_right(self.event_dates, run_after)
        return DataInterval.exact(self.event_dates[max(past - 1, 0)])

    def after(self, moment: datetime) -> datetime | None:
        """Return the first instant of the list after `moment`; None: there is none."""
        position = bisect_right(self.event_dates, moment)
        return self.event_dates[position] if position < len(self.event_dates) else None

    def before(self, moment: datetime) -> datetime | None:
        """Return the last instant of the list before `moment`; None: there is none."""
        position = bisect_left(self.event_dates, moment)
        return self.event_dates[position - 1] if position else None

    def serialize(self) -> dict[str, Any]:
        return {
            "event_dates": [one.isoformat() for one in self.event_dates],
            "restrict_to_events": self.restrict_to_events,
            "description": self.label,
        }

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> EventsTimetable:
        dates = map(datetime.fromisoformat, data["event_dates"])
        return cls(dates, data["restrict_to_events"], description=data["description"])
