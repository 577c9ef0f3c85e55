"""Counts how much space stored and parked messages take, to compare it with the configured bounds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from triggerer.domain.watchers.parked import ParkedBounds
from triggerer.store.database.script import Script
from triggerer.store.database.statement import Statement, in_list

USAGE: Final = Statement(
    "SELECT m.watcher_id, count(m.id), coalesce(sum(b.size_bytes), 0) "
    "FROM parked_message m JOIN parked_body b ON b.id = m.body_id "
    "WHERE m.watcher_id {WATCHERS} GROUP BY m.watcher_id",
    WATCHERS=in_list("watchers", "bigint"),
)
TOTAL: Final = Statement("SELECT coalesce(sum(size_bytes), 0) FROM parked_body")


class ParkedUsage:
    """How much space stored and parked messages take: the values that were last read, plus this process's additions.

    Deletions are not subtracted, so the values may be too high. Messages that other instances store are not added, so
    the values may also be too low. Therefore `ParkedWriter` reads the values again after ten
    seconds.
    """

    def __init__(self) -> None:
        self.total_bytes: int | None = None
        """The bytes of all messages. None: not read yet."""
        self.of_watchers: dict[int, tuple[int, int]] = {}
        """Watcher id to the number of its messages and their bytes."""

    def has_room(
        self, watcher_id: int, messages: int, size_bytes: int, bounds: ParkedBounds
    ) -> bool:
        """Return whether these further messages and bytes fit into the bounds of the watcher and of all watchers."""
        there, used = self.of_watchers[watcher_id]
        assert self.total_bytes is not None
        return (
            there + messages <= bounds.max_messages
            and used + size_bytes <= bounds.max_bytes
            and self.total_bytes + size_bytes <= bounds.total_bytes
        )

    def forget(self) -> None:
        """Forget all values, so that the next `read` reads them again."""
        self.total_bytes = None
        self.of_watchers.clear()

    def add(self, watcher_id: int, size_bytes: int) -> None:
        messages, used = self.of_watchers[watcher_id]
        self.of_watchers[watcher_id] = messages + 1, used + size_bytes

    def mark_set_aside(self, watcher_id: int, size_bytes: int) -> None:
        """Count a parked message. If the message was stored before, it is counted twice until `forget` is called."""
        if self.total_bytes is not None:
            self.total_bytes += size_bytes
        if watcher_id in self.of_watchers:
            self.add(watcher_id, size_bytes)

    def read(self, watcher_ids: Iterable[int]) -> Script[None]:
        """Read the total size, and the values of these watchers, unless they are known already."""
        if self.total_bytes is None:
            ((self.total_bytes,),) = yield TOTAL()
        if missing := sorted(set(watcher_ids).difference(self.of_watchers)):
            rows = yield USAGE(watchers=missing)
            self.of_watchers.update(dict.fromkeys(missing, (0, 0)))
            self.of_watchers.update((one, (count, size)) for one, count, size in rows)
