"""Group commit of trigger events.

A flush starts when the last one ended and takes what waits, up to a bound of rows and of bytes.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Final
from uuid import uuid4

import anyio

from triggerer.domain.events import Carrier, EventSource, Fence, UnsettledEvent
from triggerer.errors import (
    ConfigurationError,
    Conflict,
    OutcomeUnknown,
    RowRefused,
    StoreError,
    StoreUnavailable,
    TriggererError,
)
from triggerer.logging_setup import LazyLogger
from triggerer.store.clock import Clock, TurnClock
from triggerer.store.database import Database
from triggerer.store.emitting import NewAssetEvent, ensure_asset, record_events
from triggerer.store.encoding import check_identity, encode_extra
from triggerer.store.event_batch import EventBatch
from triggerer.store.record_step import RecordEvents
from triggerer.store.wakeups import Signal

__all__ = ["EventRecorder", "NewAssetEvent", "ensure_asset", "record_events"]

_log = LazyLogger(__name__)

MAX_EVENT_BYTES: Final = 1024 * 1024
# At 30,000 rows/s a flush of this size holds SQLite's writer for a sixth of a second.
MAX_BATCH_ROWS: Final = 5_000
# A batch of large payloads is bounded by what it weighs.
MAX_BATCH_BYTES: Final = 16 * 1024 * 1024
_FIRST_DELAY: Final = timedelta(milliseconds=50)
_LONGEST_DELAY: Final = timedelta(seconds=5)


class EventRecorder:
    """The runtime's `EventSink`. Events are stored, and settled, in the order of their submission.

    `settle(None)` is called once the rows of all of the event's watchers are durable, in this
    transaction or, for a repeat, in an earlier one. While the database is away the events wait and
    nothing is settled; the runtime bounds how many that can be. Cancelling `run` settles nothing.

    Args:
        on_fenced: Called, on the event loop, when a stream turned out to be owned by somebody else.
        clock: An event's timestamp is the instant of its submission. None: the host's, once in each turn of the loop.
    """

    def __init__(
        self,
        database: Database,
        *,
        on_fenced: Callable[[Fence], None],
        max_event_bytes: int = MAX_EVENT_BYTES,
        max_batch_rows: int = MAX_BATCH_ROWS,
        clock: Clock | None = None,
    ) -> None:
        self._database = database
        self._on_fenced = on_fenced
        self._max_event_bytes = max_event_bytes
        self._max_batch_rows = max_batch_rows
        self._clock = clock or TurnClock().now
        self._full: deque[EventBatch] = deque()
        self._filling = EventBatch()
        self._writing = 0
        self._submitted = anyio.Event()
        self._is_idle = False
        self._settled = anyio.Event()
        self.trouble: TriggererError | None = None
        """Why nothing can be written at present; None while all is well."""
        self.rows_written = 0
        """Rows handed to the database in transactions that committed, repeats included."""
        self.flushes = 0

    @property
    def unsettled(self) -> int:
        """How many events were submitted and are not settled yet."""
        return sum(map(len, self._full)) + len(self._filling) + self._writing

    def submit_nowait(
        self,
        event: UnsettledEvent,
        yielded: Carrier,
        source: EventSource,
        key: str | None,
        ordinal: int,
    ) -> None:
        """Take an event for the next flush; see `EventSink`.

        Its payload is encoded here.
        """
        if key is None:
            # No redelivery will be recognised, but a repeat of this very commit must be.
            key = "~" + uuid4().hex
        batch = self._filling
        try:
            extra = encode_extra(yielded.payload, max_bytes=self._max_event_bytes)
            check_identity(key, ordinal)
        except RowRefused as error:
            batch.set_aside(event, error)
        else:
            rows = len(source.watchers)
            if (
                len(batch.keys) + rows > self._max_batch_rows
                or batch.size_bytes + rows * len(extra) > MAX_BATCH_BYTES
            ) and batch.keys:
                self._full.append(batch)
                batch = self._filling = EventBatch()
            batch.add(event, source, extra, self._clock(), key, ordinal)
        if self._is_idle:
            self._is_idle = False
            self._submitted.set()

    async def drained(self) -> None:
        """Return once everything that was submitted is settled."""
        while self.unsettled:
            self._settled = anyio.Event()
            await self._settled.wait()

    async def run(self) -> None:
        """Write what is submitted until cancelled.

        Cancellation: A flush that has not committed is rolled back. One that has is settled first.
        """
        while True:
            if not self._full and not self._filling:
                self._submitted = anyio.Event()
                self._is_idle = True
                await self._submitted.wait()
            await self._write(self._take())

    def _take(self) -> EventBatch:
        if self._full:
            batch = self._full.popleft()
        else:
            batch, self._filling = self._filling, EventBatch()
        self._writing = len(batch)
        return batch

    async def _write(self, batch: EventBatch) -> None:
        parts = deque([batch])
        failures = 0
        while parts:
            part = parts.popleft()
            try:
                lost = await self._flush(part)
            except (StoreUnavailable, Conflict, OutcomeUnknown, ConfigurationError) as error:
                # The same part first: if its commit went through, the keys absorb the repeat.
                parts.appendleft(part)
                await self._hold_back(error, failures)
                failures += 1
            except StoreError as error:
                # A row is refused. The innocent rows around it are found by halving.
                halves = part.halves()
                if halves is None:
                    self._settle(part, refusal=error)
                else:
                    parts.extendleft(reversed(halves))
            else:
                failures = 0
                self._recovered()
                self._settle(part, lost=lost)

    async def _flush(self, batch: EventBatch) -> frozenset[Fence]:
        """Write what the fences allow in one transaction; return the fences that do not hold."""
        rows = len(batch.keys)
        if not rows:
            return frozenset()
        fences = list(batch.fences)
        step = RecordEvents(batch.columns, batch.fence_places, fences, self._database.relay.sender)
        dag_ids, held, *_ = (await self._database.once(step))[0]
        if dag_ids:
            await self._database.announce_here({Signal.EVENTS_QUEUED: set(dag_ids)})
        self.rows_written += rows
        self.flushes += 1
        return frozenset(fences) - {fences[place - 1] for place in held or ()}

    def _settle(
        self,
        part: EventBatch,
        *,
        refusal: StoreError | None = None,
        lost: frozenset[Fence] = frozenset(),
    ) -> None:
        for fence in lost:
            self._on_fenced(fence)
        part.settle(refusal, lost)
        self._writing -= len(part)
        if not self.unsettled:
            self._settled.set()

    async def _hold_back(self, error: TriggererError, failures: int) -> None:
        self.trouble = error
        longest = min(_FIRST_DELAY * 2 ** min(failures, 20), _LONGEST_DELAY).total_seconds()
        # Jitter, so that instances which were stopped together do not come back together.
        delay = longest * random.uniform(0.5, 1.0)
        _log.warning(
            "asset events wait for the database",
            error=str(error),
            events=self.unsettled,
            retry_after_s=round(delay, 3),
        )
        await anyio.sleep(delay)

    def _recovered(self) -> None:
        if self.trouble is not None:
            self.trouble = None
            # A commit whose answer was lost may have queued what its repeat finds queued already.
            self._database.wakeups.publish(Signal.EVENTS_QUEUED)
            _log.info("asset events are written again", events=self.unsettled)
