"""Instants as people read them: in UTC, marked by a `Z`."""

from __future__ import annotations

from datetime import UTC, datetime


def readable(instant: datetime) -> str:
    """Return an aware instant in UTC, to the second: `2026-11-28 08:02:28Z`.

    Run ids are in UTC too, so people can compare the times. Options such as `--from` accept this text.
    """
    in_utc = instant.astimezone(UTC).replace(tzinfo=None)
    return f"{in_utc.isoformat(' ', 'seconds')}Z"
