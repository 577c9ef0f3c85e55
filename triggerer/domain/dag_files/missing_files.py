"""Decides when a file that is missing from the DAGs folder counts as deleted. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class MissingFiles:
    """The known files that the folder lacks at present."""

    away: dict[str, datetime] = field(default_factory=dict)
    """When each file went missing, by path. The files' definitions stay, because the files may come back."""
    deleted: frozenset[str] = frozenset()
    next_in: timedelta | None = None
    """The time until the next file of `away` counts as deleted; None: `away` is empty."""


def judge_missing(
    missing_since: Mapping[str, datetime | None],
    *,
    now: datetime,
    grace: timedelta,
    gone_for: Mapping[str, timedelta] | None = None,
) -> MissingFiles:
    """Return which missing files may come back, and which count as deleted.

    Some editors and `git checkout` replace a file by deleting it and writing it again.

    Args:
        missing_since: The stored time at which each file went missing, by path. None: it went missing just now.
        now: The present time, by the clock that set `missing_since`. If this clock was set back to before
            `missing_since`, the grace starts again.
        grace: A file that is missing for this long counts as deleted.
        gone_for: For how long this process has missed each file, by path. If this is shorter than the time since
            `missing_since`, it counts instead. While the store was unavailable, the file may have come back and
            vanished again, and then the stored time is too early.
    """
    since = {path: min(known or now, now) for path, known in missing_since.items()}
    for path, age in (gone_for or {}).items():
        if path in since:
            since[path] = min(max(since[path], now - age), now)
    away = {path: start for path, start in since.items() if now - start < grace}
    return MissingFiles(
        away,
        frozenset(since.keys() - away.keys()),
        min(away.values()) + grace - now if away else None,
    )
