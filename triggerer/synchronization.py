"""Synchronization primitives that anyio lacks: its `Event` cannot be reset.

Call all methods in the event loop's thread.
"""

from __future__ import annotations

import asyncio
import math

import anyio
from anyio.lowlevel import checkpoint


class AutoResetEvent:
    """An event for one task that waits repeatedly: each return of `wait` resets the event.

    An event that is set before the task waits is not lost. Setting it several times counts once.
    """

    __slots__ = ("_waiter", "is_set")

    def __init__(self) -> None:
        self._waiter: asyncio.Future[None] | None = None
        self.is_set = False

    def set(self) -> None:
        """Wake the waiting task, or the next task that waits."""
        self.is_set = True
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            _resolve(waiter)

    def clear(self) -> None:
        self.is_set = False

    async def wait(self) -> None:
        """Wait until the event is set, and reset the event.

        The call lets other tasks run, and can be cancelled, even if the event is set already (an anyio checkpoint). To
        avoid the checkpoint, test `is_set` and call `clear`.

        Cancellation: An event that is set stays set.
        """
        if self.is_set:
            await checkpoint()
        while not self.is_set:
            self._waiter = waiter = asyncio.get_running_loop().create_future()
            await waiter
        self.is_set = False

    async def wait_for(self, seconds: float) -> bool:
        """Wait until the event is set, but at most `seconds`. Reset the event, and return whether it was set.

        A timer limits the wait, because a cancel scope would be slower.
        """
        if self.is_set or seconds == math.inf:
            await self.wait()
            return True
        loop = asyncio.get_running_loop()
        self._waiter = waiter = loop.create_future()
        timer = loop.call_later(max(seconds, 0.0), _resolve, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
        was_set, self.is_set = self.is_set, False
        return was_set


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class Notifier:
    """Wakes all tasks that are waiting now. A task must check its condition in a loop.

    ```
    while not self.has_room:
        await self.changed.wait()
    ```
    """

    __slots__ = ("_next",)

    def __init__(self) -> None:
        # None while no task waits, which makes `notify_all` almost free.
        self._next: anyio.Event | None = None

    def notify_all(self) -> None:
        if self._next is not None:
            self._next.set()
            self._next = None

    async def wait(self) -> None:
        """Return after the next `notify_all`."""
        if self._next is None:
            self._next = anyio.Event()
        await self._next.wait()
