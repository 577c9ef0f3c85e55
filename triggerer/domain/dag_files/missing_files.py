"""When a file that is missing from the DAGs folder counts as deleted. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class MissingFiles:
    """The known files that the folder does not have at present."""

    away: dict[str, datetime] = field(default_factory=dict)
    """Since when they have been missing, by path: they may be being replaced, and what they define stays."""
    deleted: frozenset[str] = frozenset()
    next_in: timedelta | None = None
    """After how long the next one counts as deleted; None: none is away."""


def judge_missing(
    missing_since: Mapping[str, datetime | None],
    *,
    now: datetime,
    grace: timedelta,
    gone_for: Mapping[str, timedelta] | None = None,
) -> MissingFiles:
    """Tell the files that may come back from those that are deleted.

    Editors, `git checkout` and `rsync --delete` replace a file by deleting it and writing it again.

    Args:
        missing_since: By path; None: it was not known to be missing before.
        now: By the clock that the instants are of. A clock that was set back since begins the grace anew.
        grace: A file that is missing for so long counts as deleted.
        gone_for: By path how long ago a file was seen last, as far as that is known. It may have come back and gone
            again while the store was away, and what is stored knows nothing of it.
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
