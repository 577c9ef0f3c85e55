"""Wakes the pump and a paused poll."""

from __future__ import annotations

from triggerer.synchronization import AutoResetEvent, Notifier


class ProgressSignal:
    """Wakes the pump and a paused poll, for instance when a filter passed a message or the store answered."""

    __slots__ = ("_moved", "_room", "is_signalled")

    def __init__(self) -> None:
        self.is_signalled = False
        """True from a call of `signal` until the pump runs, or until a task begins to wait for room.

        While this is True, `signal` need not be called.
        """
        self._moved = AutoResetEvent()
        self._room = Notifier()

    def signal(self) -> None:
        """Wake the pump and a paused poll: something has moved."""
        self.is_signalled = True
        self._moved.set()
        self._room.notify_all()

    def signal_room(self) -> None:
        """Report that something was advanced or read. Wakes the tasks in `wait_for_room`."""
        self._room.notify_all()

    async def wait(self) -> None:
        """Wait for a call of `signal`. A call after the previous `wait` returned counts too. For the pump only."""
        if self._moved.is_set:
            # No checkpoint is needed here, because the pump has checkpoints of its own.
            self._moved.clear()
        else:
            await self._moved.wait()
        self.is_signalled = False

    async def wait_for_room(self) -> None:
        """Wait until something is read or advanced. For any number of tasks."""
        # Other code calls `signal` only while this flag is False. The pump resets the flag, but not while it awaits an
        # advance. So reset the flag here. Otherwise no call of `signal` would wake this task during the advance.
        self.is_signalled = False
        await self._room.wait()
