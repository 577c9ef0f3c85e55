"""Waking one task, for paths on which `anyio.Event` would be most of the cost."""

from __future__ import annotations

import asyncio


class Wakeup:
    """Set from anywhere on the loop, waited for by one task; what is set before it waits is not lost.

    Used again and again, where an `anyio.Event` is made anew for every wait.
    """

    __slots__ = ("_loop", "_waiter", "is_set")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self.is_set = False

    def set(self) -> None:
        """Let the waiting task go on, or the next one that waits."""
        self.is_set = True
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)

    def clear(self) -> None:
        self.is_set = False

    async def wait(self) -> None:
        """Return at once if it is set, without a checkpoint.

        Cancellation: nothing is lost; it stays set if it was.
        """
        while not self.is_set:
            self._waiter = waiter = self._loop.create_future()
            await waiter


class Turns:
    """Tells whether others had a turn of the event loop since one began to watch."""

    __slots__ = ("_loop", "has_turned")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.has_turned = True

    def watch(self) -> None:
        """Begin anew: nobody had a turn since now."""
        if self.has_turned:
            self.has_turned = False
            self._loop.call_soon(self._note)

    def _note(self) -> None:
        self.has_turned = True
