"""Reads one watcher's backlog in a queue: first messages from the store, then outstanding messages from memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import structlog

from triggerer.domain.events import Fence, WatcherRef
from triggerer.domain.watchers.lane_positions import Position, decode_lane
from triggerer.domain.watchers.parked import ParkedChange, ParkedStore, SetAside, StoredMessage
from triggerer.observability.error_texts import error_text, traceback_text
from triggerer.streams.cancellation import plugin_code
from triggerer.streams.catchup.backlogs.backlog import Backlog
from triggerer.streams.catchup.backlogs.stored_lane import StoredLane
from triggerer.streams.delivery.group_state import GroupState, Newest
from triggerer.streams.delivery.lane import Entry
from triggerer.streams.producer_answers import idempotency_key

_log = structlog.get_logger(__name__)

_PAGE: Final = 100
_PAGE_BYTES: Final = 4 * 1024 * 1024
"""4 MiB. When a watcher has this much in memory, over all its lanes, a query for all lanes adds no further row."""


class QueueMessage(NamedTuple):
    """A message of a queue, from the store or from memory."""

    position: Position
    event: Any
    key: str | None
    """The idempotency key."""
    end: Position
    """The cursor after this message. A message from the store does not move the cursor."""
    id: int | None = None
    """The id of the row. None: the message was read from memory, and not stored at that time."""
    failures: int = 0
    payload: Any = None


class QueueReader:
    """Reads the stored and the outstanding messages of one watcher, in all lanes of a group."""

    def __init__(self, watcher: WatcherRef, state: GroupState, parked: ParkedStore) -> None:
        self._watcher = watcher
        self._state = state
        self._parked = parked
        self._after = 0
        """The id of the last row that was read for all lanes together."""

    async def read(self, backlog: Backlog) -> list[QueueMessage]:
        """Return the next stored messages of a lane, in order.

        If the list is empty, `StoredLane.has_unread` tells whether the store may have more.

        Raises:
            StoreError: The store cannot be read now.
        """
        stored = backlog.stored_lane
        assert stored is not None
        if not (stored.page or stored.is_read_alone):
            await self._read_all_lanes(backlog.fence)
        if not stored.page:
            await self._read_alone(backlog, stored)
        found = list(
            self._load(
                backlog, (row for row in stored.page if row.key not in stored.in_flight_keys)
            )
        )
        if stored.page and not found:
            stored.mark_given(stored.page[-1].id)
        return found

    async def _read_all_lanes(self, fence: Fence) -> None:
        """Read the next rows of all lanes in one query.

        If each message is its own lane, a query for each lane would be a query for each message.
        """
        backlogs, watcher_id = self._state.backlogs, self._watcher.watcher_id
        rows = await self._parked.read_stored(fence, watcher_id, self._after, _PAGE)
        size_bytes = self._bytes_read()
        for row in rows:
            self._after = row.id
            backlog = backlogs.find(decode_lane(row.lane), watcher_id)
            stored = None if backlog is None else backlog.stored_lane
            if stored is None or stored.is_read_alone or row.id <= stored.after:
                continue
            if len(stored.page) < _PAGE and size_bytes < _PAGE_BYTES:
                stored.page.append(row)
                size_bytes += len(row.data)
            else:
                # The lane's rows, or the rows of all lanes together, have reached a limit. Drop the lane's rows. In the
                # lane's next turn, a query for this lane alone reads them again.
                stored.page.clear()
                stored.is_read_alone = True

    def _bytes_read(self) -> int:
        """Return the size of the rows that were read, but that the filter has not received."""
        backlogs = self._state.backlogs.behind(self._watcher.watcher_id)
        pages = (
            backlog.stored_lane.page for backlog in backlogs if backlog.stored_lane is not None
        )
        return sum(len(row.data) for page in pages for row in page)

    async def _read_alone(self, backlog: Backlog, stored: StoredLane) -> None:
        stored.is_read_alone = True
        arrivals, resets = stored.arrivals, stored.resets
        rows = await self._parked.read_stored(
            backlog.fence, self._watcher.watcher_id, stored.after, _PAGE, backlog.stored_as
        )
        if resets != stored.resets:
            return
        stored.page.extend(rows)
        if not rows and arrivals == stored.arrivals:
            stored.unread = 0

    def undecided(self, backlog: Backlog, most: int) -> list[QueueMessage]:
        """Return a lane's first outstanding messages that the watcher has not read, and that the group may still store.

        When a message reaches the lane's head, the group decides whether to store the message
        (`StoredLane.decided_to`). If the broker will redeliver the outstanding messages, the list is empty.
        """
        stored = backlog.stored_lane
        assert stored is not None
        start = max(backlog.cursor[1], stored.decided_to)
        head = self._state.head_of(backlog.lane)
        if head is not None and self._state.is_redelivered(head, backlog.lane):
            return []
        found = []
        for entry in _outstanding(head):
            if entry.seq >= start:
                message = self._message(entry)
                if message is None:
                    break
                found.append(message)
                if len(found) == most:
                    break
        return found

    async def probe_candidates(self, backlog: Backlog, most: int) -> list[QueueMessage]:
        """Return messages for probes: those after the lane's first message, or else messages of other lanes.

        A message of another lane may be resolved already. It still shows whether the filter accepts any message.

        Raises:
            StoreError: The store cannot be read now.
        """
        stored, watcher_id = backlog.stored_lane, self._watcher.watcher_id
        assert stored is not None
        read, fence = self._parked.read_stored, backlog.fence
        rows = await read(fence, watcher_id, stored.after, most + 1, backlog.stored_as)
        if len(rows) == 1:
            # The store returns a very large row alone. So there may be rows after it.
            rows += await read(fence, watcher_id, rows[0].id, most, backlog.stored_as)
        found = [*self._load(backlog, rows), *self.undecided(backlog, most + 1)][1 : most + 1]
        if found:
            return found
        rows = await read(fence, watcher_id, 0, most)
        found = list(self._load(backlog, (row for row in rows if row.lane != backlog.stored_as)))
        entries = self._state.ledger.entries
        found += self._messages(
            entry
            for entry in reversed(entries[-most:])
            if entry.lane is not None and entry.lane.key != backlog.lane
        )
        outstanding = {one.key for one in found}
        newest = self._messages(
            one for one in reversed(self._state.newest) if one.lane != backlog.lane
        )
        found += [one for one in newest if one.key not in outstanding]
        return found[:most]

    def _messages(self, entries: Iterable[Entry | Newest]) -> list[QueueMessage]:
        return [found for one in entries if (found := self._message(one)) is not None]

    def _message(self, entry: Entry | Newest) -> QueueMessage | None:
        """Return the message with its idempotency key. None: the producer cannot compute the key."""
        producer = self._state.producer
        assert producer is not None
        try:
            key = idempotency_key(producer, entry.payload)
        except Exception:
            return None
        return QueueMessage([None, entry.seq], entry.event, key, [None, entry.seq + 1])

    def _load(self, backlog: Backlog, rows: Iterable[StoredMessage]) -> Iterator[QueueMessage]:
        producer = self._state.producer
        assert producer is not None
        for row in rows:
            try:
                with plugin_code(f"load_event() of {type(producer).__qualname__}"):
                    event = producer.load_event(row.data)
            except Exception as error:
                self._park(backlog, row, error)
                continue
            yield QueueMessage(
                backlog.cursor, event, row.key, backlog.cursor, id=row.id, failures=row.failures
            )

    def _park(self, backlog: Backlog, row: StoredMessage, error: Exception) -> None:
        what = SetAside(
            row.lane,
            row.key,
            row.data,
            row.failures,
            error_text(error),
            traceback_text(error),
            self._state.now(),
            was_stored=True,
        )

        def on_answer(refusal: Exception | None) -> None:
            if refusal is not None:
                _log.error("a message cannot be parked", message=row.id, error=str(refusal))

        self._state.submit_parked(
            ParkedChange(backlog.fence, self._watcher.watcher_id, what, on_answer)
        )


def begin_giving(backlog: Backlog, message: QueueMessage) -> bool:
    """Record that the filter receives a message. Return False if the filter must not receive it.

    The filter receives a message from memory only before the group has decided whether to store the message. If the
    group stores the message, the filter receives the stored copy later.
    """
    stored = backlog.stored_lane
    assert stored is not None
    if message.id is None:
        if message.position[1] < stored.decided_to:
            return False
        stored.handed_to = message.end[1]
    if message.key is not None:
        stored.in_flight_keys.add(message.key)
    return True


def _outstanding(entry: Entry | None) -> Iterator[Entry]:
    while entry is not None:
        yield entry
        entry = entry.next
