"""A batch of trigger events, as they were submitted, so that each repeat writes the same rows."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Collection
from datetime import datetime

from triggerer.domain.events import EventSource, Fence, PendingEvent
from triggerer.domain.watchers.stream_states import StateChange
from triggerer.errors import RowRefused, StoreError
from triggerer.store.events.event_rows import EventRows, SharedFields
from triggerer.store.streams.lost_leases import lease_lost


def size_of(extra: str) -> int:
    """The bytes that a payload takes in memory: where it is not ASCII, up to four for each character."""
    return len(extra) if extra.isascii() else sys.getsizeof(extra)


class EventBatch:
    """Rows by column, as both databases take them: thousands of events are a few lists.

    `add` and `add_without_rows` fill it. Nothing is added once it is being written.
    """

    __slots__ = (
        "_events",
        "_further_rows",
        "_indices",
        "_known",
        "_now",
        "_ordinal",
        "_rowless",
        "_source",
        "extras",
        "fences",
        "keys",
        "partition_keys",
        "shared",
        "shared_indices",
        "size_bytes",
        "states",
    )

    def __init__(self) -> None:
        self._events: list[PendingEvent | None] = []
        """For each row its event, if it is the first row of that; None for further rows."""
        self._further_rows = 0
        self._rowless: list[tuple[int, PendingEvent, RowRefused | None]] = []
        """Events without rows, in order, each with the number of rows before it, and its refusal if any."""
        self.extras: list[str] = []
        self.keys: list[str] = []
        self.shared_indices: list[int] = []
        self.shared: list[SharedFields] = []
        self.partition_keys: list[str | None] | None = None
        self.fences: dict[Fence, int] = {}
        """The leases under which the events were derived, with their numbers, which count from 1."""
        # Of the previous event: almost always the next has the same, so nothing is looked up.
        self._source: EventSource | None = None
        self._now: datetime | None = None
        self._ordinal = 0
        self._indices: tuple[int, ...] = ()
        """Of the fields that the rows of such an event share, one for each of the source's watchers."""
        self._known: dict[tuple[int, datetime, int], tuple[EventSource, tuple[int, ...]]] = {}
        """The same of all events so far, by the source's `id`, which is its own while it is held here."""
        self.size_bytes = 0
        """Of the payloads, counted for each row."""
        self.states: list[StateChange] = []
        """The states of streams that pass some of these events; of one stream one at most."""

    @property
    def refused(self) -> int:
        """How many events have no rows, or were refused when they were added."""
        return len(self._rowless)

    @property
    def rows(self) -> EventRows:
        """All rows, not copied."""
        return EventRows(
            self.extras, self.keys, self.shared_indices, self.shared, self.partition_keys
        )

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
        if source is not self._source or now is not self._now or ordinal != self._ordinal:
            self._share(source, now, ordinal)
        indices = self._indices
        if not indices:
            self.add_without_rows(event, None)
            return
        self.size_bytes += size_bytes
        self._further_rows += len(indices) - 1
        if partition_key is not None and self.partition_keys is None:
            self.partition_keys = [None] * len(self.keys)
        if self.partition_keys is not None:
            self.partition_keys += [partition_key] * len(indices)
        first: PendingEvent | None = event
        for index in indices:
            self._events.append(first)
            self.extras.append(extra)
            self.keys.append(key)
            self.shared_indices.append(index)
            first = None

    def _share(self, source: EventSource, now: datetime, ordinal: int) -> None:
        """Find the fields that the next rows share."""
        known = self._known.get((id(source), now, ordinal))
        if known is None:
            first = len(self.shared)
            self.shared += [
                SharedFields(
                    watcher.asset_id, now, watcher.watcher_id, ordinal, self._number(source.fence)
                )
                for watcher in source.watchers
            ]
            known = source, tuple(range(first, len(self.shared)))
            self._known[id(source), now, ordinal] = known
        self._source, self._now, self._ordinal = source, now, ordinal
        self._indices = known[1]

    def _number(self, fence: Fence | None) -> int:
        return 0 if fence is None else self.fences.setdefault(fence, len(self.fences) + 1)

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
        part.extras = self.extras[rows]
        part.size_bytes = sum(map(size_of, part.extras))
        part.keys = self.keys[rows]
        part.partition_keys = self.partition_keys and self.partition_keys[rows]
        fences = (None, *self.fences)
        indices: dict[int, int] = {}
        for index in self.shared_indices[rows]:
            if index not in indices:
                indices[index] = len(indices)
                fields = self.shared[index]
                number = part._number(fences[fields.fence_number])
                part.shared.append(fields._replace(fence_number=number))
            part.shared_indices.append(indices[index])
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
                number = self.shared[self.shared_indices[row]].fence_number
                event.complete(refusal or errors[number])
        for _, rowless, refused in rowless_events:
            rowless.complete(refused)
