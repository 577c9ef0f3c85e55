"""A batch of trigger events, as they were submitted, so that each repeat writes the same rows."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Collection, Sequence
from datetime import datetime

from triggerer.domain.events import EventSource, Fence, PendingEvent
from triggerer.domain.stream_states import StateChange
from triggerer.errors import RowRefused, StoreError
from triggerer.store.recording.lost_leases import lease_lost


def size_of(extra: str) -> int:
    """The bytes that a payload takes in memory: where it is not ASCII, up to four for each character."""
    return len(extra) if extra.isascii() else sys.getsizeof(extra)


class EventBatch:
    """Rows by column, as both databases take them: thousands of events are a few lists.

    `add` and `add_without_rows` fill it. Nothing is added once it is being written.
    """

    __slots__ = (
        "_events",
        "_fence",
        "_fence_number",
        "_further_rows",
        "_rowless",
        "asset_ids",
        "extras",
        "fence_numbers",
        "fences",
        "keys",
        "ordinals",
        "partition_keys",
        "size_bytes",
        "states",
        "timestamps",
        "watcher_ids",
    )

    def __init__(self) -> None:
        self._events: list[PendingEvent | None] = []
        """For each row its event, if it is the first row of that; None for further rows."""
        self._further_rows = 0
        self._rowless: list[tuple[int, PendingEvent, RowRefused | None]] = []
        """Events without rows, in order, each with the number of rows before it, and its refusal if any."""
        self.asset_ids: list[int] = []
        self.extras: list[str] = []
        self.timestamps: list[datetime] = []
        self.watcher_ids: list[int] = []
        self.keys: list[str] = []
        self.ordinals: list[int] = []
        self.partition_keys: list[str | None] | None = None
        """None: no row has one, as is the rule."""
        self.fence_numbers: list[int] = []
        """For each row the number (from 1) of its fence in `fences`; 0: it needs none."""
        self.fences: dict[Fence, int] = {}
        """The leases under which the events were derived, with their numbers, which count from 1."""
        # Of the previous row: almost all rows have the same fence.
        self._fence: Fence | None = None
        self._fence_number = 0
        self.size_bytes = 0
        """Of the payloads, counted for each row."""
        self.states: list[StateChange] = []
        """The states of streams that pass some of these events; of one stream one at most."""

    @property
    def refused(self) -> int:
        """How many events have no rows, or were refused when they were added."""
        return len(self._rowless)

    @property
    def columns(self) -> Sequence[Sequence[object]]:
        """The rows, as `triggerer.store.recording.bulk` takes them."""
        plain = (
            self.asset_ids,
            self.extras,
            self.timestamps,
            self.watcher_ids,
            self.keys,
            self.ordinals,
        )
        return plain if self.partition_keys is None else (*plain, self.partition_keys)

    def __len__(self) -> int:
        """Return the number of events, with rows or without."""
        return len(self._events) - self._further_rows + len(self._rowless)

    # Filling

    def add(
        self,
        event: PendingEvent,
        source: EventSource,
        extra: str,
        now: datetime,
        key: str,
        ordinal: int,
        partition_key: str | None = None,
        *,
        size_bytes: int,
    ) -> None:
        """Add the rows of an event, one for each of the source's watchers; `size_bytes`: of all their payloads."""
        watchers = source.watchers
        if not watchers:
            self.add_without_rows(event, None)
            return
        if source.fence is not self._fence:
            self._use_fence(source.fence)
        self.size_bytes += size_bytes
        self._further_rows += len(watchers) - 1
        if partition_key is not None and self.partition_keys is None:
            self.partition_keys = [None] * len(self.keys)
        if self.partition_keys is not None:
            self.partition_keys += [partition_key] * len(watchers)
        first: PendingEvent | None = event
        for watcher in watchers:
            self._events.append(first)
            self.asset_ids.append(watcher.asset_id)
            self.extras.append(extra)
            self.timestamps.append(now)
            self.watcher_ids.append(watcher.watcher_id)
            self.keys.append(key)
            self.ordinals.append(ordinal)
            self.fence_numbers.append(self._fence_number)
            first = None

    def _use_fence(self, fence: Fence | None) -> None:
        self._fence = fence
        self._fence_number = (
            0 if fence is None else self.fences.setdefault(fence, len(self.fences) + 1)
        )

    def add_without_rows(self, event: PendingEvent, refused: RowRefused | None) -> None:
        """Add an event for which nothing is to be written; it is completed in its turn."""
        self._rowless.append((len(self._events), event, refused))

    # Writing

    def halves(self) -> tuple[EventBatch, EventBatch] | None:
        """Split it into two batches, each with rows; None if all rows are of one event."""
        starts = [row for row, event in enumerate(self._events) if event is not None]
        if len(starts) < 2:
            return None
        middle = starts[len(starts) // 2]
        return self._part(0, middle), self._part(middle, len(self._events) + 1)

    def _part(self, start: int, stop: int) -> EventBatch:
        part, rows = EventBatch(), slice(start, stop)
        part._events = self._events[rows]
        part._further_rows = part._events.count(None)
        part._rowless = [
            (before - start, event, refused)
            for before, event, refused in self._rowless
            if start <= before < stop
        ]
        part.asset_ids = self.asset_ids[rows]
        part.extras = self.extras[rows]
        part.size_bytes = sum(map(size_of, part.extras))
        part.timestamps = self.timestamps[rows]
        part.watcher_ids = self.watcher_ids[rows]
        part.keys = self.keys[rows]
        part.ordinals = self.ordinals[rows]
        part.partition_keys = self.partition_keys and self.partition_keys[rows]
        fences = (None, *self.fences)
        for number in self.fence_numbers[rows]:
            part._use_fence(fences[number])
            part.fence_numbers.append(part._fence_number)
        return part

    def drop_states(self, error: StoreError) -> None:
        """Store the events alone."""
        states, self.states = self.states, []
        for change in states:
            change.on_done(error)

    def complete(self, refusal: StoreError | None, lost: Collection[Fence]) -> None:
        """Tell each event, in the order of submission, what became of it.

        Args:
            refusal: Why none of the rows was written; None: those that the fences allow are durable.
            lost: The fences that do not hold.
        """
        self._complete_events(refusal, lost)
        states, self.states = self.states, []
        for change in states:
            change.on_done(refusal or (lease_lost(change.fence) if change.fence in lost else None))

    def _complete_events(self, refusal: StoreError | None, lost: Collection[Fence]) -> None:
        if refusal is None and not lost and not self._rowless:
            for event in self._events:
                if event is not None:
                    event.complete(None)
            return
        errors = [None, *(lease_lost(fence) if fence in lost else None for fence in self.fences)]
        rowless_events = deque(self._rowless)
        for row, event in enumerate(self._events):
            while rowless_events and rowless_events[0][0] <= row:
                _, rowless, refused = rowless_events.popleft()
                rowless.complete(refused)
            if event is not None:
                event.complete(refusal or errors[self.fence_numbers[row]])
        for _, rowless, refused in rowless_events:
            rowless.complete(refused)
