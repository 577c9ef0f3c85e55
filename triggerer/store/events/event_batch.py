"""A batch of trigger events. The rows are created only once, so that a retry writes identical rows."""

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
    """Return the bytes that a payload takes in memory: up to 4 for each character if any character is not ASCII."""
    return len(extra) if extra.isascii() else sys.getsizeof(extra)


class EventBatch:
    """Events and their rows. An event has one row for each watcher that receives it.

    The rows are kept as a few long lists, one for each column, because both databases insert them in this form. `add`,
    `add_without_rows` and `add_state` fill the batch. Once the batch is being written, nothing is added.
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
        "published_at",
        "shared",
        "shared_indices",
        "size_bytes",
        "states",
    )

    def __init__(self) -> None:
        self._events: list[PendingEvent | None] = []
        """One item for each row: the event at the event's first row, and None at its further rows."""
        self._further_rows = 0
        self._rowless: list[tuple[int, PendingEvent, RowRefused | None]] = []
        """Events without rows, in order of submission.

        An item has the number of rows before the event, the event, and its refusal or None.
        """
        self.extras: list[str] = []
        self.keys: list[str] = []
        self.shared_indices: list[int] = []
        self.shared: list[SharedFields] = []
        self.partition_keys: list[str | None] | None = None
        self.fences: dict[Fence, int] = {}
        """The fences (leases) of the rows and states, each with its number, counted from 1."""
        # The source, instant and ordinal of the previous event. Usually the next event has equal values and needs no
        # look-up.
        self._source: EventSource | None = None
        self._now: datetime | None = None
        self._ordinal = 0
        self._indices: tuple[int, ...] = ()
        """For each row of the previous event, the index of its fields in `shared`."""
        self._known: dict[tuple[int, datetime, int], tuple[EventSource, tuple[int, ...]]] = {}
        """The indices of fields in `shared`, by `id(source)`, instant and ordinal.

        The value contains the source, so that the source stays alive and no other source gets the same `id`.
        """
        self.size_bytes = 0
        """The size of all payloads in bytes. A payload counts once for each row of its event."""
        self.published_at: datetime | None = None
        """When the first event's message was published, if that is known."""
        self.states: list[StateChange] = []
        """Stream states to store with the events, at most one for each stream."""

    @property
    def refusals(self) -> int:
        """The number of events that were refused when they were submitted."""
        return sum(refused is not None for _, _, refused in self._rowless)

    @property
    def rows(self) -> EventRows:
        """All rows; the columns are not copied."""
        return EventRows(
            self.extras, self.keys, self.shared_indices, self.shared, self.partition_keys
        )

    def __len__(self) -> int:
        """Return the number of events, with or without rows."""
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
        """Add the rows of an event, one for each of the source's watchers.

        Args:
            extra: The payload as JSON text.
            now: The timestamp of the event.
            key: The idempotency key.
            ordinal: The number of the event among the events of its message.
            size_bytes: The size of the payload, times the number of watchers.
        """
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
        """Set the shared fields to which the next rows refer. Add these fields to the batch if they are new."""
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
        """Add an event that needs no rows. `complete` completes events with and without rows in order of submission.

        Args:
            refused: Why the event was refused. None: it was not refused, but its source has no watchers.
        """
        self._rowless.append((len(self._events), event, refused))

    def add_state(self, change: StateChange) -> None:
        """Add a stream state. The lease of its stream is checked even if the batch has no events of this stream."""
        self._number(change.fence)
        self.states.append(change)

    # Writing

    def halves(self) -> tuple[EventBatch, EventBatch] | None:
        """Return two batches, each with about half of the events, or None if all rows belong to one event."""
        starts = [row for row, event in enumerate(self._events) if event is not None]
        if len(starts) < 2:
            return None
        middle = starts[len(starts) // 2]
        return self._part(0, middle), self._part(middle, len(self._events) + 1)

    def _part(self, start: int, stop: int) -> EventBatch:
        part, rows = EventBatch(), slice(start, stop)
        part.published_at = self.published_at
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
        """Remove the stream states from the batch, and report this error for each state. The events stay."""
        states, self.states = self.states, []
        for change in states:
            change.on_done(error)

    def complete(self, refusal: StoreError | None, lost: Collection[Fence]) -> None:
        """Complete each event, in the order of submission, with its outcome.

        Args:
            refusal: Why no row was written. None: all rows are durable, except the rows under a lost fence.
            lost: The fences (leases) that do not hold.
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
