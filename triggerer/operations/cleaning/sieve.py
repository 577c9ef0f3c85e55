"""Separates old events that nothing needs from old events that must stay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from triggerer.store.events.cleaning import OldEvent, Window
from triggerer.store.watchers.cleaning import UnsettledWatcher


@dataclass(slots=True)
class Sifted:
    """The old events of a window that nothing needs, and how many old events stay."""

    unneeded: list[OldEvent] = field(default_factory=list)
    kept: Counter[str] = field(default_factory=Counter)
    unsettled: dict[int, UnsettledWatcher] = field(default_factory=dict)
    """By id, the watchers whose old events stay, because the messages may be delivered again."""

    @property
    def watcher_ids(self) -> set[int]:
        """The watchers of the events that nothing needs."""
        return {event.watcher_id for event in self.unneeded if event.watcher_id}


class Sieve:
    """Separates events that nothing needs from events that must stay."""

    def __init__(
        self, unsettled: dict[int, UnsettledWatcher], newest: set[int], parked: set[int]
    ) -> None:
        self._unsettled = unsettled
        self._newest = newest
        self._parked = parked
        self.marked: set[int] = set()
        """The ids of watchers that `mark_cleaned` has marked: some of their events were deleted."""

    def add_marked(self, marked: set[int], unsettled: Mapping[int, UnsettledWatcher]) -> None:
        """Record that `mark_cleaned` has marked these watchers. From now on, events of watchers in `unsettled` stay."""
        self.marked |= marked
        self._unsettled.update(unsettled)

    def sift(self, window: Window) -> Sifted:
        """Separate the old events of a window into unneeded events and events that stay."""
        sifted = Sifted()
        for event in window.old:
            if not event.is_expired:
                continue
            if (reason := self._reason(event, window)) is None:
                sifted.unneeded.append(event)
            else:
                sifted.kept[reason] += 1
                if reason == "watcher" and event.watcher_id in self._unsettled:
                    sifted.unsettled[event.watcher_id] = self._unsettled[event.watcher_id]
        return sifted

    def _reason(self, event: OldEvent, window: Window) -> str | None:
        """Return the reason why an event stays. None: the event may be deleted."""
        if event.id in window.queued:
            return "queued"
        if event.id in window.in_runs:
            return "in_run"
        if event.id in window.emitted:
            return "emitted_by_run"
        if event.id in self._newest:
            return "newest"
        if event.id in self._parked:
            return "parked"
        if event.watcher_id and (event.watcher_id in self._unsettled or not event.is_quiet):
            return "watcher"
        return None
