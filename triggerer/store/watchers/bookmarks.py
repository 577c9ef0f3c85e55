"""Reads the bookmark of a watcher when its trigger starts, and writes bookmarks together with the trigger's events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.events import Fence
from triggerer.domain.text.json_text import load_json
from triggerer.domain.watchers.bookmarks import Bookmark, BookmarkChange
from triggerer.errors import LeaseLost, StoreError
from triggerer.store.database.script import Script
from triggerer.store.database.statement import ParameterRows, Statement, parameter_rows
from triggerer.store.events.batch_statement import RecordEvents
from triggerer.store.events.event_rows import EventRows
from triggerer.store.schema.models import WatcherBookmark
from triggerer.store.streams.fences import valid_fences
from triggerer.store.streams.lost_leases import lease_lost

# Reads the id of the last change of each watcher's bookmark. The joins leave out watchers that were deleted or moved to
# another stream.
STORED: Final = Statement(
    "SELECT g.watcher_id, b.change FROM {WATCHERS} g "
    "JOIN watcher w ON w.id = g.watcher_id "
    "JOIN trigger t ON t.id = w.trigger_id AND t.stream_digest = g.digest "
    "LEFT JOIN watcher_bookmark b ON b.watcher_id = g.watcher_id",
    WATCHERS=parameter_rows(watcher_id="bigint", digest="text"),
)
KNOWN_KEYS: Final = Statement(
    "SELECT e.watcher_id, e.idempotency_key FROM {KEYS} g "
    "JOIN asset_event e ON e.idempotency_key = g.key AND e.watcher_id = g.watcher_id AND e.asset_id = g.asset_id",
    KEYS=parameter_rows(key="text", watcher_id="bigint", asset_id="bigint"),
)
SAVE: Final = Statement(
    "INSERT INTO watcher_bookmark (watcher_id, classpath, change, value) "
    "SELECT g.watcher_id, g.classpath, g.change, g.value FROM {BOOKMARKS} g "
    "WHERE true ON CONFLICT (watcher_id) DO UPDATE SET "
    "classpath = excluded.classpath, change = excluded.change, value = excluded.value",
    BOOKMARKS=parameter_rows(watcher_id="bigint", classpath="text", change="text", value="text"),
)


class Written:
    """The outcome of a transaction that wrote bookmarks."""

    def __init__(self) -> None:
        self.lost: frozenset[Fence] = frozenset()
        """The fences that do not hold."""
        self.errors: dict[str, StoreError] = {}
        """The errors of the changes that were not stored, by change id."""
        self.has_repeats = False
        """True if a change was stored by an earlier transaction, whose wake-up for the schedulers may be lost."""
        self.dag_ids: Sequence[str] = ()
        """The DAGs for which events may have been queued."""


def write_bookmarks(
    changes: Sequence[BookmarkChange], rows: Mapping[str, EventRows], sender: str
) -> Script[Written]:
    """Store these changes with their events. A change is stored if its fence holds and it follows the stored bookmark.

    A change follows the stored bookmark if its `previous` is the id of the bookmark's last change. If the last change
    is this change itself, an earlier commit succeeded, but its answer was lost. The change then counts as stored.

    Args:
        changes: At most one for each watcher.
        rows: The events of each change that has events, by change id. The `fence_number` of the events is 1, because a
            change has only one fence.
        sender: The id of this process. A process ignores the wake-ups that it sent itself.
    """
    written = Written()
    fences = {change.fence for change in changes}
    valid = yield from valid_fences(fences)
    written.lost = frozenset(fences - valid)
    stored = yield STORED(
        rows=ParameterRows(
            sorted((one.watcher.watcher_id, one.fence.stream_digest) for one in changes)
        )
    )
    last: dict[int, str | None] = {row[0]: row[1] for row in stored}
    new = []
    for change in changes:
        if change.fence not in valid or change.watcher.watcher_id not in last:
            written.errors[change.change] = lease_lost(change.fence)
        elif last[change.watcher.watcher_id] == change.previous:
            new.append(change)
        elif last[change.watcher.watcher_id] == change.change:
            written.has_repeats = True
        else:
            written.errors[change.change] = LeaseLost(
                f"watcher {change.watcher.watcher_id} has another bookmark by now"
            )
    new = yield from _without_known_keys(new, rows, written)
    yield from _store(new, rows, sender, written)
    return written


def _without_known_keys(
    changes: Sequence[BookmarkChange], rows: Mapping[str, EventRows], written: Written
) -> Script[list[BookmarkChange]]:
    """Refuse changes with an event whose key the watcher has already used, because the store would drop the event.

    Returns:
        The changes that are not refused.
    """
    keys = [
        (key, one.watcher.watcher_id, one.watcher.asset_id)
        for one in changes
        if one.change in rows
        for key in rows[one.change].keys
    ]
    if not keys:
        return list(changes)
    known = yield KNOWN_KEYS(rows=ParameterRows(keys))
    used: dict[int, str] = {row[0]: row[1] for row in known}
    for change in changes:
        if (key := used.get(change.watcher.watcher_id)) is not None:
            written.errors[change.change] = StoreError(
                f"the watcher already has an event with the key {key!r}; its bookmark should be beyond this event"
            )
    return [one for one in changes if one.change not in written.errors]


def _store(
    changes: Sequence[BookmarkChange],
    rows: Mapping[str, EventRows],
    sender: str,
    written: Written,
) -> Script[None]:
    dag_ids: set[str] = set()
    for change in changes:
        if change.change in rows:
            ((found, *_),) = yield RecordEvents(rows[change.change], [change.fence], sender)
            dag_ids.update(found or ())
    written.dag_ids = sorted(dag_ids)
    saved: list[tuple[Any, ...]] = [
        (one.watcher.watcher_id, one.classpath, one.change, one.value.decode()) for one in changes
    ]
    if saved:
        yield SAVE(rows=ParameterRows(sorted(saved)))


async def load_bookmark(session: AsyncSession, watcher_id: int, classpath: str) -> Bookmark:
    """Return a watcher's last bookmark. Its value is None if none is stored, or if another trigger class stored it.

    Args:
        classpath: The class path of the watcher's present trigger.
    """
    row = await session.get(WatcherBookmark, watcher_id)
    if row is None:
        return Bookmark(None, None)
    return Bookmark(row.change, load_json(row.value) if row.classpath == classpath else None)
