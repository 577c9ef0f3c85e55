"""Stores the bookmarks of watchers, each in one transaction with the events since the previous bookmark.

A bookmark is the JSON value from which a trigger without a shared stream continues.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Final

from triggerer.domain.events import Fence
from triggerer.domain.text.storable import check_partition_key
from triggerer.domain.watchers.bookmarks import Bookmark, BookmarkChange
from triggerer.errors import RowRefused
from triggerer.store.database.clock import Now, TurnClock
from triggerer.store.database.transactions import Database
from triggerer.store.database.wakeups.signals import Signal
from triggerer.store.events.encoding import check_identity, encode_extra
from triggerer.store.events.event_rows import EventRows, SharedFields
from triggerer.store.events.recorder import MAX_EVENT_BYTES
from triggerer.store.streams.fenced_writer import FencedWriter
from triggerer.store.watchers.bookmarks import load_bookmark, write_bookmarks

_MOST_CHANGES: Final = 50
_MOST_EVENTS: Final = 2_000


class BookmarkWriter(FencedWriter[BookmarkChange]):
    """The `BookmarkStore` of triggers without a shared stream. A trigger submits one change at a time."""

    what = "bookmarks of watchers"

    def __init__(
        self,
        database: Database,
        *,
        on_fenced: Callable[[Fence], None],
        now: Now | None = None,
        random: Random | None = None,
    ) -> None:
        super().__init__(database, on_fenced=on_fenced, random=random)
        self._now = now or TurnClock().now
        self._waiting: deque[BookmarkChange] = deque()
        self._rows: dict[str, EventRows] = {}
        """By change id, the rows of a submitted change's events, kept so that a repeated write has identical rows."""

    async def load(self, fence: Fence, watcher_id: int, classpath: str) -> Bookmark:
        # The watcher's earlier trigger may have submitted a change just before it ended. Wait until it is stored.
        await self.wait_until_written([fence.stream_digest])
        async with self._database.reading() as session:
            return await load_bookmark(session, watcher_id, classpath)

    def submit_nowait(self, change: BookmarkChange) -> None:
        try:
            rows = self._encode(change) if change.events else None
        except RowRefused as error:
            change.on_done(error)
            return
        self._mark_submitted(change)
        if rows is not None:
            self._rows[change.change] = rows
        self._waiting.append(change)
        if self._is_idle:
            self._wake()

    def _encode(self, change: BookmarkChange) -> EventRows:
        """Raises: RowRefused: An event cannot be stored, or two events have the same key."""
        extras, keys, partition_keys = [], [], []
        seen: set[str] = set()
        for number, event in enumerate(change.events):
            extras.append(encode_extra(event.payload, max_bytes=MAX_EVENT_BYTES))
            key = event.key if event.key is not None else f"~{change.change}.{number}"
            check_identity(key, 0)
            if key in seen:
                # The store would drop the second event.
                raise RowRefused(f"two events before one bookmark have the key {key!r}")
            seen.add(key)
            keys.append(key)
            if event.partition_key is not None:
                check_partition_key(event.partition_key)
            partition_keys.append(event.partition_key)
        watcher = change.watcher
        shared = SharedFields(watcher.asset_id, self._now(), watcher.watcher_id, 0, 1)
        return EventRows(
            extras,
            keys,
            [0] * len(keys),
            [shared],
            partition_keys if any(key is not None for key in partition_keys) else None,
        )

    def _take(self) -> list[BookmarkChange] | None:
        group: list[BookmarkChange] = []
        watchers: set[int] = set()
        events = 0
        while self._waiting and len(group) < _MOST_CHANGES:
            change = self._waiting[0]
            events += len(change.events)
            # Take only one change for each watcher. The next change can be checked only after this one is stored.
            if group and (events > _MOST_EVENTS or change.watcher.watcher_id in watchers):
                break
            group.append(self._waiting.popleft())
            watchers.add(change.watcher.watcher_id)
        return group or None

    async def _write(self, group: list[BookmarkChange]) -> None:
        sender = self._database.transport.sender
        rows = {one.change: self._rows[one.change] for one in group if one.change in self._rows}
        written = await self._database.perform(write_bookmarks(group, rows, sender))
        if written.dag_ids:
            await self._database.announce_here({Signal.EVENTS_QUEUED: set(written.dag_ids)})
        if written.has_repeats:
            self._database.wakeups.publish(Signal.EVENTS_QUEUED)
        for fence in written.lost:
            self._on_fenced(fence)
        for change in group:
            self._answer(change, written.errors.get(change.change))

    def _answer(self, change: BookmarkChange, error: Exception | None) -> None:
        self._rows.pop(change.change, None)
        super()._answer(change, error)
