"""The bookmarks of watchers: read when a trigger starts, written with its events under the lease of its stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.events import Fence
from triggerer.domain.json_text import load_json
from triggerer.domain.watchers.bookmarks import Bookmark, BookmarkChange
from triggerer.errors import LeaseLost, StoreError
from triggerer.store.database.script import Script
from triggerer.store.database.statement import ParameterRows, Statement, parameter_rows
from triggerer.store.events.event_rows import EventRows
from triggerer.store.events.record_step import RecordEvents
from triggerer.store.schema.models import WatcherBookmark
from triggerer.store.streams.fences import valid_fences
from triggerer.store.streams.lost_leases import lease_lost

# The joins leave out watchers that were removed meanwhile, or whose trigger moved to another stream.
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
    """The outcome of a transaction with bookmarks."""

    def __init__(self) -> None:
        self.lost: frozenset[Fence] = frozenset()
        """The fences that do not hold."""
        self.errors: dict[str, StoreError] = {}
        """By change id why a change was not stored."""
        self.has_repeats = False
        """Whether a change was stored by an earlier attempt, which may have announced nothing."""
        self.dag_ids: Sequence[str] = ()
        """The DAGs for which events may wait now."""


def write_bookmarks(
    changes: Sequence[BookmarkChange], rows: Mapping[str, EventRows], sender: str
) -> Script[Written]:
    """Store each change whose fence holds and whose predecessor is the stored bookmark, with its events.

    A change that is stored already is a repeat of a commit without an answer: it counts as stored again.

    Args:
        changes: At most one for each watcher.
        rows: The events of each change that has events, by change id, with the fence number 1.
        sender: See `AnnouncementTransport`.
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
    """Refuse changes with a key that the watcher has used before: the new event would be lost as a repeat."""
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
                f"the watcher has an event with the key {key!r} already, after which its bookmark should be"
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
    """Return the last bookmark of a watcher."""
    row = await session.get(WatcherBookmark, watcher_id)
    if row is None:
        return Bookmark(None, None)
    return Bookmark(row.change, load_json(row.value) if row.classpath == classpath else None)
