"""The instants before which a cleaning deletes data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from triggerer.config.sections import RetentionSettings


@dataclass(frozen=True, slots=True)
class Limits:
    """For each kind of data, the instant before which the data is old. None: data of this kind is never old."""

    events: datetime | None = None
    runs: datetime | None = None
    """Runs that ended before this instant are old. Their logs are deleted with them."""
    logs: datetime | None = None
    """The logs of runs that ended before this instant are old, even if the runs stay."""
    audit: datetime | None = None
    parked: datetime | None = None

    @classmethod
    def of(cls, settings: RetentionSettings, now: datetime) -> Limits:
        """Return the limits that the configured durations give at this instant."""

        def before(age: timedelta | None) -> datetime | None:
            return None if age is None else now - age

        return cls(
            events=before(settings.events),
            runs=before(settings.runs),
            logs=before(settings.logs),
            audit=before(settings.audit),
            parked=before(settings.parked),
        )

    def with_events_and_runs(self, before: datetime) -> Limits:
        """Return these limits with `before` for events and runs. Logs are then deleted only with their runs."""
        return replace(self, events=before, runs=before, logs=None)

    def with_room(self, before: datetime) -> Limits:
        """Return these limits for a database that is full: events and runs from before this instant are old, too.

        If the limit for runs is None, all runs stay, and with them the events that belong to runs.
        """
        runs = None if self.runs is None else max(self.runs, before)
        return replace(self, events=max(self.events or before, before), runs=runs)

    @property
    def latest(self) -> datetime | None:
        """The latest of the instants. None: nothing is ever old."""
        given = (self.events, self.runs, self.logs, self.audit, self.parked)
        return max((one for one in given if one is not None), default=None)

    def written(self) -> dict[str, str]:
        """Return the instants as text by kind, for the audit."""
        given = {
            "events": self.events,
            "runs": self.runs,
            "logs": self.logs,
            "audit": self.audit,
            "parked": self.parked,
        }
        return {kind: instant.isoformat() for kind, instant in given.items() if instant}
