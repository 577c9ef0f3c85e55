"""The one place where timetables read the time."""

from __future__ import annotations

from datetime import UTC, datetime


def now() -> datetime:
    """Return the current instant, in UTC. Tests freeze it: it is read through `datetime.now`."""
    return datetime.now(UTC)
