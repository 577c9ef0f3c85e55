"""How many rows and files a cleaning deleted, and how many stayed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from triggerer.operations.cleaning.limits import Limits
from triggerer.store.watchers.cleaning import UnsettledWatcher


@dataclass(slots=True)
class Cleaned:
    """The numbers of deleted rows and files. In a dry run: the numbers that would be deleted."""

    before: Limits
    dry_run: bool
    runs: int = 0
    asset_events: int = 0
    backfills: int = 0
    logs: int = 0
    """Deleted log files."""
    audit: int = 0
    parked: int = 0
    logs_elsewhere: int = 0
    """Deleted runs whose logs are not on this machine."""
    kept_runs: int = 0
    """Old runs that stay, because the scheduler, an unfinished backfill or a waiting event still needs them."""
    kept_events: Counter[str] = field(default_factory=Counter)
    """Old events that stay, by reason: `queued`, `in_run`, `emitted_by_run`, `newest`, `parked` or `watcher`."""
    kept_watchers: list[UnsettledWatcher] = field(default_factory=list)
    """Watchers whose old events stay, because the messages may be delivered again."""

    @property
    def deleted(self) -> dict[str, int]:
        """The numbers of deleted rows and logs by kind."""
        return {
            "runs": self.runs,
            "asset_events": self.asset_events,
            "backfills": self.backfills,
            "logs": self.logs,
            "audit": self.audit,
            "parked": self.parked,
        }
