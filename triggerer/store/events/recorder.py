"""Group commit of trigger events; a group is bounded in rows and in bytes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Final
from uuid import uuid4

import anyio

from triggerer.backoff import Backoff, warn_seldom
from triggerer.domain.events import EventSource, Fence, HasPayload, PendingEvent
from triggerer.domain.storable import check_partition_key
from triggerer.domain.watchers.stream_states import StateChange, Submission
from triggerer.errors import (
    ConfigurationError,
    RowRefused,
    StoreError,
    TransientStoreError,
    TriggererError,
)
from triggerer.observability.logging_setup import LazyLogger
from triggerer.store.database.clock import Now, TurnClock
from triggerer.store.database.group_commit import GroupCommit
from triggerer.store.database.script import Row, Script
from triggerer.store.database.transactions import Database
from triggerer.store.database.wakeups.signals import Signal
from triggerer.store.events.encoding import check_identity, encode_extra
from triggerer.store.events.event_batch import EventBatch, size_of
from triggerer.store.events.record_step import RecordEvents
from triggerer.store.streams.states import save_states
from triggerer.synchronization import Notifier

_log = LazyLogger(__name__)

MAX_EVENT_BYTES: Final = 1024 * 1024
# At 30,000 rows/s a flush of this size holds SQLite's writer for a sixth of a second.
MAX_BATCH_ROWS: Final = 5_000
# Bounds a batch of large payloads.
MAX_BATCH_BYTES: Final = 16 * 1024 * 1024
# Four batches: filters go on while the first is written. All streams together, since there is one recorder.
MAX_PENDING_BYTES: Final = 64 * 1024 * 1024


class EventRecorder(GroupCommit[EventBatch]):
    """The runtime's `EventSink`. Events are stored, and settled, in the order of their submission.

    `complete(None)` is called once the rows of all of the event's watchers are durable, in this
    transaction or, for a repeat, in an earlier one. While the database is away, events wait and
    nothing is completed; the runtime bounds their number, and waits while they are too large together. Cancelling `run`
    completes nothing.

    Args:
        max_pending_bytes: It is full while so many bytes of payloads wait or are being written, counted for each row.
        on_fenced: Called on the event loop when a lease no longer holds: another instance owns the stream.
        now: The timestamp of an event that is submitted; None: the host's time, once in each turn of the loop.
        random: For the jitter of retries.
    """

    # If its commit went through all the same, the keys absorb the repeat.
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
        """Of the payloads that were submitted and are not settled yet, counted for each row."""
        self.trouble: TriggererError | None = None
        """Why nothing can be written at present; None if it can."""
        self.rows_written = 0
        """Rows of transactions that committed, repeats included."""
        self.flushes = 0

    @property
    def unsettled(self) -> int:
        """How many events were submitted and are not settled yet."""
        return sum(map(len, self._full)) + len(self._filling) + self._writing

    def submit_nowait(
        self,
        event: PendingEvent,
        yielded: HasPayload,
        source: EventSource,
        key: str | None,
        ordinal: int,
    ) -> None:
        """Take an event for the next flush; see `EventSink`.

        Its payload is encoded here.
        """
        if key is None:
            # A redelivery will not be recognised, but a repeat of this commit must be.
            key = "~" + uuid4().hex
        batch = self._filling
        try:
            extra = encode_extra(yielded.payload, max_bytes=self._max_event_bytes)
            check_identity(key, ordinal)
            # Events of another service's triggers have none.
            partition_key = getattr(yielded, "partition_key", None)
            if partition_key is not None:
                check_partition_key(partition_key)
        except RowRefused as error:
            batch.add_without_rows(event, error)
        else:
            rows = len(source.watchers)
            # First as almost all are: a call would take as long as this.
            size_bytes = rows * (len(extra) if extra.isascii() else size_of(extra))
            if (
                len(batch.keys) + rows > self._max_batch_rows
                or batch.size_bytes + size_bytes > MAX_BATCH_BYTES
            ) and batch.keys:
                self._full.append(batch)
                batch = self._filling = EventBatch()
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
        """Take events, and the state that passes them, for one transaction; see `EventsWithState`."""
        rows = sum(len(one.source.watchers) for one in submissions)
        if self._filling.keys and len(self._filling.keys) + rows > self._max_batch_rows:
            self._full.append(self._filling)
            self._filling = EventBatch()
        batch = self._filling
        refused = batch.refused
        for one in submissions:
            self.submit_nowait(one.event, one.yielded, one.source, one.key, one.ordinal)
        if self._filling is not batch:
            change.on_done(StoreError("the events do not fit into one transaction with the state"))
        elif batch.refused != refused:
            change.on_done(StoreError("one of the events that the state passes was refused"))
        else:
            batch.states.append(change)

    async def wait_for_room(self) -> None:
        while self.is_full:
            await self._has_room.wait()

    async def drained(self) -> None:
        """Return once everything that was submitted is settled."""
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
            # What was refused may be one of them, or an event without which it must not be stored.
            group.drop_states(StoreError("the transaction with the state was refused"))
            return (group,)
        return group.halves()

    def _without_refused(self, group: EventBatch, error: StoreError) -> tuple[EventBatch, ...]:
        self._settle(group, refusal=error)
        return ()

    async def _flush(self, batch: EventBatch) -> frozenset[Fence]:
        """Write the rows whose fences hold, in one transaction; return the fences that do not hold."""
        rows = len(batch.keys)
        if not rows:
            return frozenset()
        fences = list(batch.fences)
        step = RecordEvents(batch.rows, fences, self._database.transport.sender)
        if batch.states:
            row = await self._database.perform(_record_with_states(step, batch.states))
        else:
            row = (await self._database.perform_step(step))[0]
        dag_ids, held, *_ = row
        if dag_ids:
            await self._database.announce_here({Signal.EVENTS_QUEUED: set(dag_ids)})
        self.rows_written += rows
        self.flushes += 1
        return frozenset(fences) - {fences[number - 1] for number in held or ()}

    def _settle(
        self,
        part: EventBatch,
        *,
        refusal: StoreError | None = None,
        lost: frozenset[Fence] = frozenset(),
    ) -> None:
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
            # A commit whose answer was lost may have queued events, which its repeat did not announce.
            self._database.wakeups.publish(Signal.EVENTS_QUEUED)
            _log.info("asset events are written again", events=self.unsettled)


def _record_with_states(step: RecordEvents, states: Sequence[StateChange]) -> Script[Row]:
    """The step, and the states under leases that hold: all of it is durable, or nothing is."""
    (row,) = yield step
    held = {step.fences[number - 1] for number in row[1] or ()}
    yield from save_states([change for change in states if change.fence in held])
    return row
