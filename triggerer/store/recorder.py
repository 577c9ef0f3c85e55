"""Group commit of trigger events.

a flush starts when the last one ended and takes all that waits.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final, NamedTuple
from uuid import uuid4

import anyio
import structlog

from triggerer.domain.events import Fence, UnsettledEvent
from triggerer.errors import (
    ConfigurationError,
    Conflict,
    LeaseLost,
    OutcomeUnknown,
    RowRefused,
    StoreError,
    StoreUnavailable,
    TriggererError,
)
from triggerer.store.bulk import NO_SOURCE, EventRow
from triggerer.store.clock import Clock, TurnClock
from triggerer.store.database import Database
from triggerer.store.emitting import NewAssetEvent, ensure_asset, record_events
from triggerer.store.encoding import check_identity, encode_extra
from triggerer.store.record_step import RecordEvents
from triggerer.store.wakeups import Signal

__all__ = ["EventRecorder", "NewAssetEvent", "ensure_asset", "record_events"]

_log = structlog.get_logger(__name__)

MAX_EVENT_BYTES: Final = 1024 * 1024
# At 30,000 rows/s a flush of this size holds SQLite's writer for a sixth of a second.
MAX_BATCH_ROWS: Final = 5_000
# A batch of large payloads is bounded by what it weighs.
MAX_BATCH_BYTES: Final = 16 * 1024 * 1024
_new_tuple: Final = tuple.__new__
"""A named tuple without the call of a Python function that its constructor is."""
_FIRST_DELAY: Final = timedelta(milliseconds=50)
_LONGEST_DELAY: Final = timedelta(seconds=5)


class _Waiting(NamedTuple):
    """An event as it was when it was submitted, so that every repeat writes the same rows."""

    event: UnsettledEvent
    rows: Sequence[EventRow]
    fence: Fence | None
    size_bytes: int
    refused: RowRefused | None = None


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
        self._clock = clock or TurnClock()
        self._queue: deque[_Waiting] = deque()
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
        return len(self._queue) + self._writing

    def submit_nowait(self, event: UnsettledEvent) -> None:
        """Take an event for the next flush.

        Its payload is encoded here and may change afterwards.
        """
        self._queue.append(self._prepare(event))
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
            if not self._queue:
                self._submitted = anyio.Event()
                self._is_idle = True
                await self._submitted.wait()
            batch = self._take()
            self._writing = len(batch)
            await self._write(batch)

    def _prepare(self, event: UnsettledEvent) -> _Waiting:
        key = event.idempotency_key
        if key is None:
            # No redelivery will be recognised, but a repeat of this very commit must be.
            key = "~" + uuid4().hex
        watchers, fence = event.source
        ordinal = event.ordinal
        try:
            extra = encode_extra(event.payload, max_bytes=self._max_event_bytes)
            check_identity(key, ordinal)
        except RowRefused as error:
            return _Waiting(event, (), fence, 0, error)
        now = self._clock()
        # Not a comprehension, which is the call of a function: there is one watcher almost always.
        rows: list[EventRow] = []
        for watcher, asset in watchers:
            row = (asset, extra, now, watcher, key, ordinal, *NO_SOURCE)
            rows.append(_new_tuple(EventRow, row))
        return _new_tuple(_Waiting, (event, rows, fence, len(extra) * len(rows), None))

    def _take(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        queue, most_rows = self._queue, self._max_batch_rows
        rows = size_bytes = 0
        for waiting in queue:
            _, its_rows, _, its_bytes, _ = waiting
            rows += len(its_rows)
            size_bytes += its_bytes
            if batch and (rows > most_rows or size_bytes > MAX_BATCH_BYTES):
                break
            batch.append(waiting)
        for _ in batch:
            queue.popleft()
        return batch

    async def _write(self, batch: Sequence[_Waiting]) -> None:
        parts = deque([batch])
        failures = 0
        while parts:
            part = parts.popleft()
            try:
                lost = await self._flush([one for one in part if one.refused is None])
            except (StoreUnavailable, Conflict, OutcomeUnknown, ConfigurationError) as error:
                # The same part first: if its commit went through, the keys absorb the repeat.
                parts.appendleft(part)
                await self._hold_back(error, failures)
                failures += 1
            except StoreError as error:
                # A row is refused. The innocent rows around it are found by halving.
                if len(part) == 1:
                    self._settle(part, refusal=error)
                else:
                    middle = len(part) // 2
                    parts.extendleft((part[middle:], part[:middle]))
            else:
                failures = 0
                self._recovered()
                self._settle(part, lost=lost)

    async def _flush(self, batch: Sequence[_Waiting]) -> frozenset[Fence]:
        """Write what the fences allow in one transaction; return the fences that do not hold."""
        if not batch:
            return frozenset()
        fences = list(dict.fromkeys(one.fence for one in batch if one.fence is not None))
        places = {fence: place for place, fence in enumerate(fences, 1)}
        rows: list[EventRow] = []
        fence_places: list[int] = []
        for _, its_rows, its_fence, _, _ in batch:
            rows += its_rows
            fence_places += [places[its_fence] if its_fence else 0] * len(its_rows)
        if not rows:
            return frozenset()
        step = RecordEvents(rows, fence_places, fences, self._database.relay.sender)
        dag_ids, held, *_ = (await self._database.once(step))[0]
        if dag_ids:
            await self._database.announce_here({Signal.EVENTS_QUEUED: set(dag_ids)})
        self.rows_written += len(rows)
        self.flushes += 1
        return frozenset(fences) - {fences[place - 1] for place in held or ()}

    def _settle(
        self,
        part: Sequence[_Waiting],
        *,
        refusal: StoreError | None = None,
        lost: frozenset[Fence] = frozenset(),
    ) -> None:
        for fence in lost:
            self._on_fenced(fence)
        for event, _, its_fence, _, refused in part:
            error: Exception | None = refused or refusal
            if lost and error is None and its_fence is not None and its_fence in lost:
                error = LeaseLost(
                    f"the stream {its_fence.stream_digest} is no longer owned by {its_fence.owner} "
                    f"in epoch {its_fence.epoch}"
                )
            event.settle(error)
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
