"""Instants as people read them. Every command, error and log shows UTC, marked by a `Z`."""

from __future__ import annotations

from datetime import UTC, datetime


def readable(instant: datetime) -> str:
    """Return an aware instant in UTC, to the second: `2026-11-28 08:02:28Z`.

    Run ids are in UTC too, so a reader can compare a time in a table with the run id next to it. `fromisoformat` reads
    the text, so options such as `--from` accept a printed time.
    """
    in_utc = instant.astimezone(UTC).replace(tzinfo=None)
    return f"{in_utc.isoformat(' ', 'seconds')}Z"
