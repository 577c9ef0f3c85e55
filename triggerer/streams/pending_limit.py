"""The limit of events that the store has not answered yet."""

from __future__ import annotations

from triggerer.synchronization import Notifier


class PendingLimit:
    """Counts the submitted events that the store has not answered, and makes filters wait at a limit.

    Each stream, and each trigger without a stream, has a limit of its own. All watchers that catch up share one limit.

    The submitter of an event adds one to `count`, and the store's answer calls `give_room`. A restart of the stream
    keeps the count. Otherwise repeated restarts could fill the memory during an outage of the store.
    """

    __slots__ = ("_changed", "count", "is_awaited", "limit")

    def __init__(self, limit: int) -> None:
        self.count = 0
        """The submitted events that the store has not answered."""
        self.limit = limit
        """Filters pause when `count` reaches it. Zero once the service is stopping."""
        self.is_awaited = False
        """Whether `signal_room` has to be called when `count` has fallen."""
        self._changed = Notifier()

    def give_room(self) -> None:
        """Subtract one event, because the store has answered or has not accepted the event."""
        self.count -= 1
        if self.is_awaited:
            self.signal_room()

    def signal_room(self) -> None:
        """Wake the waiting tasks if `count` has fallen below the limit or to zero. Needed only if `is_awaited`."""
        if not self.count or self.count < self.limit:
            self.is_awaited = False
            self._changed.notify_all()

    def close(self) -> None:
        """Make filters wait from now on. The stopping service then cancels them."""
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
