"""The only module of timetables that reads the time."""

from __future__ import annotations

from datetime import UTC, datetime


def now() -> datetime:
    """Return the current UTC instant. Tests can freeze it, because it calls `datetime.now`."""
    return datetime.now(UTC)
