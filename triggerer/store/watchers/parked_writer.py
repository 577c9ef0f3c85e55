"""Writes stored and parked messages, many in one transaction (group commit), and reads stored messages."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from time import monotonic
from typing import Final

from triggerer.domain.events import Fence
from triggerer.domain.watchers.parked import ParkedBounds, ParkedChange, StoredMessage
from triggerer.errors import ParkedFull
from triggerer.store.database.transactions import Database
from triggerer.store.streams.fenced_writer import FencedWriter
from triggerer.store.streams.lost_leases import lease_lost
from triggerer.store.watchers.parked import write_parked
from triggerer.store.watchers.parked_usage import ParkedUsage
from triggerer.store.watchers.stored_backlog import read_stored

_MOST_ROWS: Final = 200
_MOST_BYTES_READ: Final = 4 * 1024 * 1024
"""The size at which a read for a watcher stops. The last message may exceed it."""
_USAGE_HOLDS_S: Final = 10.0
"""The used space is read again after this time, because other processes store messages, too."""


class ParkedWriter(FencedWriter[ParkedChange]):
    """The `ParkedStore` to which streams submit stored and parked messages."""

    what = "messages that are parked"

    def __init__(
        self,
        database: Database,
        *,
        on_fenced: Callable[[Fence], None],
        bounds: ParkedBounds,
        random: Random | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        super().__init__(database, on_fenced=on_fenced, random=random)
        self._bounds = bounds
        self._waiting: list[ParkedChange] = []
        self._usage = ParkedUsage()
        self._usage_read_at = -math.inf
        self._clock = clock

    def submit_nowait(self, change: ParkedChange) -> None:
        self._waiting.append(change)
        self._mark_submitted(change)
        if self._is_idle:
            self._wake()

    async def read_stored(
        self, fence: Fence, watcher_id: int, after: int, limit: int, lane: str | None = None
    ) -> list[StoredMessage]:
        async with self._database.reading() as session:
            return await read_stored(
                session,
                fence.stream_digest,
                watcher_id,
                after,
                limit,
                lane,
                max_bytes=_MOST_BYTES_READ,
            )

    def _take(self) -> list[ParkedChange] | None:
        if not self._waiting:
            return None
        group, self._waiting = self._waiting[:_MOST_ROWS], self._waiting[_MOST_ROWS:]
        return group

    async def _write(self, group: list[ParkedChange]) -> None:
        now = self._clock()
        if now - self._usage_read_at >= _USAGE_HOLDS_S:
            self._usage.forget()
            self._usage_read_at = now
        usage, self._usage = self._usage, ParkedUsage()
        lost, refused = await self._database.perform(write_parked(group, self._bounds, usage))
        # Keep the usage only after a write without an error. After an error it is unknown what was stored.
        self._usage = usage
        for fence in lost:
            self._on_fenced(fence)
        full = set(map(id, refused))
        for change in group:
            if change.fence in lost:
                self._answer(change, lease_lost(change.fence))
            else:
                self._answer(change, _full() if id(change) in full else None)


def _full() -> ParkedFull:
    return ParkedFull(
        "no further message can be parked: a bound is reached",
        hint="triggerer watchers parked list shows them: replay or discard some, or raise [triggerer]"
        " parked_max_messages, parked_max_bytes or parked_total_bytes",
    )
