"""Trigger events that are written together, as they were when submitted: every repeat writes the same rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from datetime import datetime

from triggerer.domain.events import EventSource, Fence, UnsettledEvent
from triggerer.errors import LeaseLost, RowRefused, StoreError


class EventBatch:
    """Rows column by column, as both databases take them, so that thousands of events are no more than a few lists.

    It is filled by `add` and `set_aside`, and written once nothing is added any more.
    """

    __slots__ = (
        "_aside",
        "_events",
        "_fence",
        "_further_rows",
        "_place",
        "asset_ids",
        "extras",
        "fence_places",
        "fences",
        "keys",
        "ordinals",
        "size_bytes",
        "timestamps",
        "watcher_ids",
    )

    def __init__(self) -> None:
        self._events: list[UnsettledEvent | None] = []
        """For each row the event that it is the first one of; None for an event's further rows."""
        self._further_rows = 0
        self._aside: list[tuple[int, UnsettledEvent, RowRefused | None]] = []
        """Events without rows, in order, each with the number of rows before it and what there is to say of it."""
        self.asset_ids: list[int] = []
        self.extras: list[str] = []
        self.timestamps: list[datetime] = []
        self.watcher_ids: list[int] = []
        self.keys: list[str] = []
        self.ordinals: list[int] = []
        self.fence_places: list[int] = []
        """For each row the place (from 1) of its fence in `fences`; 0: it needs none."""
        self.fences: dict[Fence, int] = {}
        """The leases under which the events were derived, by their places, which count from 1."""
        # Those of the row before: almost all are alike.
        self._fence: Fence | None = None
        self._place = 0
        self.size_bytes = 0

    @property
    def columns(self) -> Sequence[Sequence[object]]:
        """The rows, as `triggerer.store.recording.bulk` takes them."""
        return (
            self.asset_ids,
            self.extras,
            self.timestamps,
            self.watcher_ids,
            self.keys,
            self.ordinals,
        )

    def __len__(self) -> int:
        """How many events it is of, with rows or without."""
        return len(self._events) - self._further_rows + len(self._aside)

    # Filling

    def add(
        self,
        event: UnsettledEvent,
        source: EventSource,
        extra: str,
        now: datetime,
        key: str,
        ordinal: int,
    ) -> None:
        """Add the rows of an event, one for each of the source's watchers."""
        watchers = source.watchers
        if not watchers:
            self.set_aside(event, None)
            return
        if source.fence is not self._fence:
            self._place_rows_under(source.fence)
        self.size_bytes += len(extra) * len(watchers)
        self._further_rows += len(watchers) - 1
        first: UnsettledEvent | None = event
        for watcher in watchers:
            self._events.append(first)
            self.asset_ids.append(watcher.asset_id)
            self.extras.append(extra)
            self.timestamps.append(now)
            self.watcher_ids.append(watcher.watcher_id)
            self.keys.append(key)
            self.ordinals.append(ordinal)
            self.fence_places.append(self._place)
            first = None

    def _place_rows_under(self, fence: Fence | None) -> None:
        self._fence = fence
        self._place = 0 if fence is None else self.fences.setdefault(fence, len(self.fences) + 1)

    def set_aside(self, event: UnsettledEvent, refused: RowRefused | None) -> None:
        """Take an event that has nothing to be written; it is settled when its turn comes."""
        self._aside.append((len(self._events), event, refused))

    # Writing

    def halves(self) -> tuple[EventBatch, EventBatch] | None:
        """The same in two batches, neither of them without a row; None where all rows are of one event."""
        starts = [row for row, event in enumerate(self._events) if event is not None]
        if len(starts) < 2:
            return None
        middle = starts[len(starts) // 2]
        return self._part(0, middle), self._part(middle, len(self._events) + 1)

    def _part(self, start: int, stop: int) -> EventBatch:
        part, rows = EventBatch(), slice(start, stop)
        part._events = self._events[rows]
        part._further_rows = part._events.count(None)
        part._aside = [
            (before - start, event, refused)
            for before, event, refused in self._aside
            if start <= before < stop
        ]
        part.asset_ids = self.asset_ids[rows]
        part.extras = self.extras[rows]
        part.timestamps = self.timestamps[rows]
        part.watcher_ids = self.watcher_ids[rows]
        part.keys = self.keys[rows]
        part.ordinals = self.ordinals[rows]
        fences = (None, *self.fences)
        for place in self.fence_places[rows]:
            part._place_rows_under(fences[place])
            part.fence_places.append(part._place)
        return part

    def settle(self, refusal: StoreError | None, lost: Collection[Fence]) -> None:
        """Tell each event, in the order of submission, what became of it.

        Args:
            refusal: Why none of the rows was written; None: those that the fences allow are durable.
            lost: The fences that do not hold.
        """
        if refusal is None and not lost and not self._aside:
            for event in self._events:
                if event is not None:
                    event.settle(None)
            return
        errors = [None, *(_lease_lost(fence) if fence in lost else None for fence in self.fences)]
        aside = deque(self._aside)
        for row, event in enumerate(self._events):
            while aside and aside[0][0] <= row:
                _, rowless, refused = aside.popleft()
                rowless.settle(refused)
            if event is not None:
                event.settle(refusal or errors[self.fence_places[row]])
        for _, rowless, refused in aside:
            rowless.settle(refused)


def _lease_lost(fence: Fence) -> LeaseLost:
    return LeaseLost(
        f"the stream {fence.stream_digest} is no longer owned by {fence.owner} in epoch {fence.epoch}"
    )
