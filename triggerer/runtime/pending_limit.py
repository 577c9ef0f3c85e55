"""What was handed to the store and is not answered yet, and its bound."""

from __future__ import annotations

from triggerer.synchronization import Notifier


class PendingLimit:
    """Counts the events of one stream, or of one trigger without a stream, that the store still holds.

    It outlives groups and restarts: while the store is away, neither an ack timeout nor a redelivery makes room. Who
    submits adds one to `count` and, once that has reached `limit`, awaits `wait_for_room`; who hears the store's answer
    takes one away.
    """

    __slots__ = ("_changed", "count", "is_awaited", "limit")

    def __init__(self, limit: int) -> None:
        self.count = 0
        """Submitted and not answered."""
        self.limit = limit
        """Filters pause from here on; zero once the service is stopping."""
        self.is_awaited = False
        """Whether somebody is to hear of it when `count` falls."""
        self._changed = Notifier()

    def note_room(self) -> None:
        """`count` has fallen; called if somebody waits."""
        if not self.count or self.count < self.limit:
            self.is_awaited = False
            self._changed.notify_all()

    def close(self) -> None:
        """Let whoever waits for room wait until it is cancelled: the service is stopping."""
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
