"""Records which events each watcher failed, or missed because it was absent. No I/O."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from operator import attrgetter

from triggerer.domain.events import WatcherRef


class _Absence:
    __slots__ = ("since", "until")

    def __init__(self, since: int) -> None:
        self.since = since
        self.until: int | None = None
        """The first event after the absence. None: the watcher is still absent."""


_since = attrgetter("since")


class Absences:
    """For each watcher, the ranges of event numbers that count as failed.

    The ledger counts how many subscribers failed an event. This class tells which watchers those subscribers serve.
    Each failure of a trigger adds a range, and `trim` removes the ranges that end before the oldest outstanding event.
    """

    def __init__(self) -> None:
        self._by_watcher: dict[WatcherRef, list[_Absence]] = {}
        """The ranges of each watcher, in order and disjoint."""

    def begin(self, watchers: Iterable[WatcherRef], seq: int) -> None:
        """Count every event from `seq` on as failed for these watchers."""
        for watcher in watchers:
            absences = self._by_watcher.setdefault(watcher, [])
            since = seq
            # Merge adjacent ranges: a subscriber may miss thousands of events, each with a call (`Admission._miss`).
            while absences and (absences[-1].until is None or absences[-1].until >= seq):
                since = min(since, absences.pop().since)
            absences.append(_Absence(since))

    def end(self, watchers: Iterable[WatcherRef], seq: int) -> None:
        """Stop counting at `seq`, because these watchers resolve events again, or have left."""
        for watcher in watchers:
            absences = self._by_watcher.get(watcher)
            if absences and absences[-1].until is None:
                absences[-1].until = seq

    def forget(self, watchers: Iterable[WatcherRef]) -> None:
        """Forget these watchers, which were deleted."""
        for watcher in watchers:
            self._by_watcher.pop(watcher, None)

    def find(self, seq: int) -> list[WatcherRef]:
        """Return the watchers for which this event has failed."""
        found = []
        for watcher, absences in self._by_watcher.items():
            at = bisect_right(absences, seq, key=_since) - 1
            if at >= 0:
                until = absences[at].until
                if until is None or seq < until:
                    found.append(watcher)
        return found

    def any_of(self, watchers: Iterable[WatcherRef]) -> bool:
        """Return whether one of the watchers was absent for an event that may be outstanding."""
        return any(watcher in self._by_watcher for watcher in watchers)

    def trim(self, oldest: int) -> None:
        """Forget the ranges before `oldest`, the oldest outstanding event."""
        for watcher, absences in list(self._by_watcher.items()):
            kept = [one for one in absences if one.until is None or one.until > oldest]
            if kept:
                self._by_watcher[watcher] = kept
            else:
                del self._by_watcher[watcher]
