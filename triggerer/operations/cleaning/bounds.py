"""The bounds of the database: when it is full, and which events must go to make room."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.store.audit.cleanings import CleaningState
from triggerer.store.database.size import database_bytes
from triggerer.store.events.cleaning import count_all_events, highest_event, oldest_of_newest

_STAYS: Final = 0.9
"""The part of the events that stays when the database is full."""
_GROWTH: Final = 1.01
"""PostgreSQL's files do not shrink when rows are deleted. After a cleaning that has left the files larger than
`max_bytes`, the database is full again only once the files have grown by this factor."""


class Bounds:
    """Finds out whether the database is full.

    Counting reads all events. So after the first count, events are counted again only if an
    estimate exceeds `max_events`: the last count plus the growth of the highest event id. The
    estimate is too high if events were deleted or ids are unused.

    Args:
        max_events: The database is full if it has more events than this. None: no limit.
        max_bytes: The database is full if it is larger than this. None: no limit.
    """

    def __init__(self, max_events: int | None, max_bytes: int | None) -> None:
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._counted: tuple[int, int] | None = None
        """The number of events at the last count, and the highest id then."""

    async def cut(self, session: AsyncSession, state: CleaningState) -> datetime | None:
        """Return the instant before which events must go to make room. None: the database is not full."""
        stays = None
        if self._max_events is not None and await self._has_more_than(session, self._max_events):
            stays = int(self._max_events * _STAYS)
        elif self._max_bytes is not None and await self._is_larger(session, state):
            stays = int(await count_all_events(session) * _STAYS)
        return None if stays is None else await oldest_of_newest(session, stays)

    async def size_to_save(self, session: AsyncSession) -> int | None:
        """Return the size of PostgreSQL's files if it exceeds `max_bytes` even after a cleaning; else None.

        The caller saves this size, because PostgreSQL's files rarely shrink when rows are deleted. `cut` finds the
        database full again only when the files have grown to `_GROWTH` times this size.
        """
        size = await database_bytes(session)
        is_full = self._max_bytes is not None and size > self._max_bytes
        return size if is_full and session.get_bind().dialect.name == "postgresql" else None

    async def _has_more_than(self, session: AsyncSession, number: int) -> bool:
        highest = await highest_event(session)
        if self._counted is not None:
            counted, up_to = self._counted
            if counted + highest - up_to <= number:
                return False
        self._counted = (await count_all_events(session), highest)
        return self._counted[0] > number

    async def _is_larger(self, session: AsyncSession, state: CleaningState) -> bool:
        assert self._max_bytes is not None
        full_bytes = state.full_bytes
        bound = (
            self._max_bytes if full_bytes is None else max(self._max_bytes, full_bytes * _GROWTH)
        )
        return await database_bytes(session) > bound
