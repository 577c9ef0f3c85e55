"""An in-memory table of stored and parked messages, instead of the store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from anyio.lowlevel import checkpoint

from triggerer.domain.events import Fence
from triggerer.domain.watchers.parked import (
    Failed,
    ParkedChange,
    ParkedState,
    Passed,
    Replayed,
    Returned,
    SetAside,
    Stored,
    StoredMessage,
)


@dataclass(frozen=True, slots=True)
class _Row:
    watcher_id: int
    message: StoredMessage
    state: ParkedState


class InMemoryParked:
    """Stores each change at once, without a limit on the number of messages."""

    def __init__(self) -> None:
        self._rows: dict[int, _Row] = {}
        self._last_id = 0

    def submit_nowait(self, change: ParkedChange) -> None:
        what, watcher_id = change.what, change.watcher_id
        if isinstance(what, Stored):
            self._put(watcher_id, what, ParkedState.KEPT)
        elif isinstance(what, SetAside):
            self._put(watcher_id, what, ParkedState.SET_ASIDE)
        elif isinstance(what, Passed):
            for key in what.keys:
                id_ = self._find(watcher_id, key)
                if id_ is not None and self._rows[id_].state is ParkedState.KEPT:
                    del self._rows[id_]
        elif isinstance(what, Failed):
            id_ = self._find(watcher_id, what.key)
            if id_ is not None:
                row = self._rows[id_]
                message = row.message._replace(failures=what.failures)
                self._rows[id_] = replace(row, message=message)
        elif isinstance(what, Returned):
            self._rows[what.id] = replace(self._rows[what.id], state=ParkedState.SET_ASIDE)
        else:
            assert isinstance(what, Replayed)
            self._rows.pop(what.id, None)
        change.on_done(None)

    def _put(self, watcher_id: int, what: Stored | SetAside, state: ParkedState) -> None:
        """Add a message, unique by watcher and key. A stored message can become parked, but not the reverse."""
        id_ = self._find(watcher_id, what.key)
        if id_ is not None and state is ParkedState.KEPT:
            return
        if id_ is None:
            self._last_id += 1
            id_ = self._last_id
        self._rows[id_] = _Row(
            watcher_id, StoredMessage(id_, what.lane, what.key, what.data), state
        )

    def _find(self, watcher_id: int, key: str) -> int | None:
        for id_, row in self._rows.items():
            if row.watcher_id == watcher_id and row.message.key == key:
                return id_
        return None

    async def read_stored(
        self, fence: Fence, watcher_id: int, after: int, limit: int, lane: str | None = None
    ) -> list[StoredMessage]:
        # This stands for the query of a real store.
        await checkpoint()
        return [
            message
            for message in self._of(watcher_id, ParkedState.KEPT)
            if message.id > after and lane in (None, message.lane)
        ][:limit]

    def stored(self, watcher_id: int, lane: str) -> list[bytes]:
        """A watcher's stored messages of a lane, in order, as `dump_event` wrote them."""
        return [one.data for one in self._of(watcher_id, ParkedState.KEPT) if one.lane == lane]

    def set_aside(self, watcher_id: int) -> list[bytes]:
        """A watcher's parked messages, in order, as `dump_event` wrote them."""
        return [one.data for one in self._of(watcher_id, ParkedState.SET_ASIDE)]

    def _of(self, watcher_id: int, state: ParkedState) -> Iterator[StoredMessage]:
        for _, row in sorted(self._rows.items()):
            if row.watcher_id == watcher_id and row.state is state:
                yield row.message
