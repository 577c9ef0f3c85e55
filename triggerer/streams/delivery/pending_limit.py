"""The limit of events that the store has not answered yet."""

from __future__ import annotations

from triggerer.synchronization import Notifier


class PendingLimit:
    """Counts the submitted events that the store has not answered, and makes filters wait at a limit.

    There is a count for each stream, for each trigger without a stream, and for all watchers that catch up.

    The code that submits an event adds one to `count`, and awaits `wait_for_room` once `limit` is reached. The store's
    answer subtracts one. A restart of the stream does not reset the count, so that a store that is away does not get
    the same events again and again.
    """

    __slots__ = ("_changed", "count", "is_awaited", "limit")

    def __init__(self, limit: int) -> None:
        self.count = 0
        """Submitted and not answered."""
        self.limit = limit
        """Filters pause when `count` reaches it. Zero once the service is stopping."""
        self.is_awaited = False
        """Whether `signal_room` has to be called when `count` has fallen."""
        self._changed = Notifier()

    def signal_room(self) -> None:
        """`count` has fallen; see `is_awaited`."""
        if not self.count or self.count < self.limit:
            self.is_awaited = False
            self._changed.notify_all()

    def close(self) -> None:
        """Make no room from now on: the service is stopping, and the waiting tasks are going to be cancelled."""
        self.limit = 0

    async def wait_for_room(self) -> None:
        while self.count >= self.limit:
            await self._next_change()

    async def wait_until_empty(self) -> None:
        while self.count:
            await self._next_change()

    async def _next_change(self) -> None:
        self.is_awaited = True
        await self._changed.wait()
