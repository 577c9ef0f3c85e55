"""The recorder stores the events of triggers, many in one transaction (a group commit), and completes each event."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from random import Random
from typing import Final
from uuid import uuid4

import anyio

from triggerer.backoff import Backoff, warn_seldom
from triggerer.domain.events import EventSource, Fence, HasPayload, PendingEvent
from triggerer.domain.text.storable import check_partition_key
from triggerer.domain.watchers.stream_states import StateChange, Submission
from triggerer.errors import (
    ConfigurationError,
    RowRefused,
    StoreError,
    TransientStoreError,
    TriggererError,
)
from triggerer.observability.logging_setup import LazyLogger
from triggerer.observability.metrics.table import (
    EVENT_LATENCY,
    EVENTS_RECORDED,
    EVENTS_REFUSED,
    RECORD_BATCH,
    RECORD_DURATION,
)
from triggerer.store.database.clock import Now, TurnClock
from triggerer.store.database.group_commit import GroupCommit
from triggerer.store.database.script import Row, Script
from triggerer.store.database.transactions import Database
from triggerer.store.database.wakeups.signals import Signal
from triggerer.store.events.batch_statement import RecordEvents
from triggerer.store.events.encoding import check_identity, encode_extra
from triggerer.store.events.event_batch import EventBatch, size_of
from triggerer.store.streams.states import save_states, write_states
from triggerer.synchronization import Notifier

_log = LazyLogger(__name__)

MAX_EVENT_BYTES: Final = 1024 * 1024
# 5,000 rows: the largest transaction. At 30,000 rows/s it occupies SQLite's writer for a sixth of a second.
MAX_BATCH_ROWS: Final = 5_000
# 16 MiB: the most bytes of payloads in one transaction. With small payloads, MAX_BATCH_ROWS is reached first.
MAX_BATCH_BYTES: Final = 16 * 1024 * 1024
# 64 MiB: room for four transactions of large payloads, so that filters can submit events while one transaction is
# written. A process has one recorder, so the limit is for all its streams together.
MAX_PENDING_BYTES: Final = 64 * 1024 * 1024


class EventRecorder(GroupCommit[EventBatch]):
    """The `EventSink` to which streams submit events. It stores and completes the events in the order of submission.

    An event has a row for each of its watchers. Once all rows are durable, `complete(None)` is called on the event.
    Rows that were stored by an earlier delivery of the message count too. While the database is away, events wait, and
    none is completed. If `run` is cancelled, the remaining events are never completed.

    Args:
        max_pending_bytes: The recorder is full while payloads of this total size wait or are being written. Streams
            then submit no further events. A payload counts once for each row.
        on_fenced: Called on the event loop with each lost lease. A lease is lost, for instance, when another instance
            claims the stream.
        now: Returns the timestamp of a submitted event. None: the host's time, read once in each turn of the loop.
        random: For the jitter of retries.
    """

    # `TransientStoreError` includes `OutcomeUnknown`, so a commit with an unknown outcome is repeated. If the first
    # commit has succeeded, the rows' idempotency keys make the repeat harmless.
    retried = (TransientStoreError, ConfigurationError)
    refusals = StoreError

    def __init__(
        self,
        database: Database,
        *,
        on_fenced: Callable[[Fence], None],
        max_event_bytes: int = MAX_EVENT_BYTES,
        max_batch_rows: int = MAX_BATCH_ROWS,
        max_pending_bytes: int = MAX_PENDING_BYTES,
        now: Now | None = None,
        random: Random | None = None,
    ) -> None:
        super().__init__(Backoff(first=0.05, longest=5.0, random=random or Random()))
        self._database = database
        self._on_fenced = on_fenced
        self._max_event_bytes = max_event_bytes
        self._max_batch_rows = max_batch_rows
        self._max_pending_bytes = max_pending_bytes
        self._now = now or TurnClock().now
        self._full: deque[EventBatch] = deque()
        self._filling = EventBatch()
        self._writing = 0
        self._settled = anyio.Event()
        self.is_full = False
        """See `EventSink`."""
        self._has_room = Notifier()
        self.unsettled_bytes = 0
        """The size of the payloads of events that are submitted and not completed. A payload counts once for each row.
        """
        self.trouble: TriggererError | None = None
        """The error that prevents writing at present, or None."""
        self.rows_written = 0
        """Rows in committed transactions, repeats included."""
        self.flushes = 0

    @property
    def unsettled(self) -> int:
        """The number of events that are submitted and not completed."""
        return sum(map(len, self._full)) + len(self._filling) + self._writing

    def submit_nowait(
        self,
        event: PendingEvent,
        yielded: HasPayload,
        source: EventSource,
        key: str | None,
        ordinal: int,
    ) -> None:
        """Encode an event's payload and add the event to the next transaction; see `EventSink`."""
        if key is None:
            # If a message without a key is redelivered, its events are stored again. The random key only prevents
            # duplicates when this write is retried.
            key = "~" + uuid4().hex
        batch = self._filling
        try:
            extra = encode_extra(yielded.payload, max_bytes=self._max_event_bytes)
            check_identity(key, ordinal)
            # Triggers written for Airflow yield events without this attribute.
            partition_key = getattr(yielded, "partition_key", None)
            if partition_key is not None:
                check_partition_key(partition_key)
        except RowRefused as error:
            batch.add_without_rows(event, error)
        else:
            rows = len(source.watchers)
            # Most payloads are ASCII. For them `size_of` is not called, because a call would double this line's cost.
            size_bytes = rows * (len(extra) if extra.isascii() else size_of(extra))
            if (
                len(batch.keys) + rows > self._max_batch_rows
                or batch.size_bytes + size_bytes > MAX_BATCH_BYTES
            ) and batch.keys:
                self._full.append(batch)
                batch = self._filling = EventBatch()
            if not batch.keys:
                batch.published_at = event.published_at
            batch.add(
                event,
                source,
                extra,
                self._now(),
                key,
                ordinal,
                partition_key,
                size_bytes=size_bytes,
            )
            self.unsettled_bytes += size_bytes
            if self.unsettled_bytes >= self._max_pending_bytes:
                self.is_full = True
        if self._is_idle:
            self._wake()

    def submit_with_state_nowait(
        self, submissions: Sequence[Submission], change: StateChange
    ) -> None:
        """Add events and their stream's next state to one transaction.

        The producer's state says that the source was read up to these events. So the state must not be stored without
        the events.
        """
        rows = sum(len(one.source.watchers) for one in submissions)
        if self._filling.keys and len(self._filling.keys) + rows > self._max_batch_rows:
            self._full.append(self._filling)
            self._filling = EventBatch()
        batch = self._filling
        refusals = batch.refusals
        for one in submissions:
            self.submit_nowait(one.event, one.yielded, one.source, one.key, one.ordinal)
        if self._filling is not batch:
            change.on_done(StoreError("the events do not fit into one transaction with the state"))
        elif batch.refusals != refusals:
            change.on_done(StoreError("an event that the state counts as read was refused"))
        else:
            batch.add_state(change)

    async def wait_for_room(self) -> None:
        while self.is_full:
            await self._has_room.wait()

    async def drained(self) -> None:
        """Return once all submitted events are completed."""
        while self.unsettled:
            self._settled = anyio.Event()
            await self._settled.wait()

    def _take(self) -> EventBatch | None:
        if self._full:
            batch = self._full.popleft()
        elif self._filling:
            batch, self._filling = self._filling, EventBatch()
        else:
            return None
        self._writing = len(batch)
        return batch

    async def _write(self, group: EventBatch) -> None:
        lost = await self._flush(group)
        self._recovered()
        self._settle(group, lost=lost)

    def _halves(self, group: EventBatch) -> tuple[EventBatch, ...] | None:
        if group.states:
            # The error does not show whether an event or a state was refused. A state says that the source was read up
            # to certain events. If one of these events was refused, the state must not be stored. So report all states
            # of the group as failed, and write the events without states.
            group.drop_states(StoreError("the transaction with the state was refused"))
            return (group,)
        return group.halves()

    def _without_refused(self, group: EventBatch, error: StoreError) -> tuple[EventBatch, ...]:
        self._settle(group, refusal=error)
        return ()

    async def _flush(self, batch: EventBatch) -> frozenset[Fence]:
        """Write the rows and states whose leases hold, in one transaction. Return the fences of the lost leases."""
        rows = len(batch.keys)
        if not rows:
            if not batch.states:
                return frozenset()
            return await self._database.perform(write_states(batch.states))
        began = time.monotonic()
        fences = list(batch.fences)
        step = RecordEvents(batch.rows, fences, self._database.transport.sender)
        if batch.states:
            row = await self._database.perform(_record_with_states(step, batch.states))
        else:
            row = (await self._database.perform_step(step))[0]
        dag_ids, valid, *others = row
        if dag_ids:
            await self._database.announce_here({Signal.EVENTS_QUEUED: set(dag_ids)})
        self.rows_written += rows
        self.flushes += 1
        _count(batch, rows, began, new=others[0] if others else rows)
        return frozenset(fences) - {fences[number - 1] for number in valid or ()}

    def _settle(
        self,
        part: EventBatch,
        *,
        refusal: StoreError | None = None,
        lost: frozenset[Fence] = frozenset(),
    ) -> None:
        if refused := len(part) if refusal is not None else part.refusals:
            EVENTS_REFUSED.add(refused)
        for fence in lost:
            self._on_fenced(fence)
        part.complete(refusal, lost)
        self._writing -= len(part)
        self.unsettled_bytes -= part.size_bytes
        if self.is_full and self.unsettled_bytes < self._max_pending_bytes:
            self.is_full = False
            self._has_room.notify_all()
        if not self.unsettled:
            self._settled.set()

    def _record_failure(self, error: TriggererError, delay: float) -> None:
        self.trouble = error
        warn_seldom(
            _log,
            self._backoff.failures,
            "asset events wait for the database",
            error=str(error),
            events=self.unsettled,
            retry_after_s=round(delay, 3),
        )

    def _recovered(self) -> None:
        if self.trouble is not None:
            self.trouble = None
            # A commit whose answer was lost may have queued events. The retry found these events stored, and announced
            # nothing. So wake the scheduler for all DAGs.
            self._database.wakeups.publish(Signal.EVENTS_QUEUED)
            _log.info("asset events are written again", events=self.unsettled)


def _count(batch: EventBatch, rows: int, began: float, *, new: int) -> None:
    """Count one transaction for the metrics.

    Args:
        rows: The number of rows, duplicates included.
        began: When the transaction began, in monotonic seconds.
        new: The number of new events, without duplicates.
    """
    RECORD_DURATION.observe(time.monotonic() - began)
    RECORD_BATCH.observe(rows)
    EVENTS_RECORDED.add(new, "watcher")
    since = batch.published_at or batch.rows.shared[0].timestamp
    EVENT_LATENCY.observe(max((datetime.now(UTC) - since).total_seconds(), 0.0))


def _record_with_states(step: RecordEvents, states: Sequence[StateChange]) -> Script[Row]:
    """Store events and stream states in one transaction. A state is stored only if its stream's lease still holds."""
    (row,) = yield step
    valid = {step.fences[number - 1] for number in row[1] or ()}
    yield from save_states([change for change in states if change.fence in valid])
    return row
