"""Instants as people read them. The rule of every command, error and log: UTC, and the `Z` says so."""

from __future__ import annotations

from datetime import UTC, datetime


def readable(instant: datetime) -> str:
    """Return an aware instant in UTC, to the second: `2026-11-28 08:02:28Z`.

    Run ids are in UTC too, so a time in a table can be compared with the run id beside it. `fromisoformat` reads the
    text, so an option such as `--from` takes it as it is printed.
    """
    in_utc = instant.astimezone(UTC).replace(tzinfo=None)
    return f"{in_utc.isoformat(' ', 'seconds')}Z"
