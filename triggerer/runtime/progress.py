"""What wakes the pump and a paused poll."""

from __future__ import annotations

from triggerer.synchronization import AutoResetEvent, Notifier


class Progress:
    """Tells that a subscriber, an answer of the store or an advance has moved something, once in a turn of the loop."""

    __slots__ = ("_moved", "_room", "is_noted")

    def __init__(self) -> None:
        self.is_noted = False
        """Whether the pump and a paused poll know already; who moves looks here first, since a call costs more."""
        self._moved = AutoResetEvent()
        self._room = Notifier()

    def note(self) -> None:
        """Something moved. Wakes the pump and a paused poll once, however much moves in this turn of the loop."""
        self.is_noted = True
        self._moved.set()
        self._room.notify_all()

    def note_room(self) -> None:
        """Something was advanced or read. Wakes a paused poll."""
        self._room.notify_all()

    async def wait(self) -> None:
        """Wait until `note` was called since this returned last; for the pump alone."""
        if self._moved.is_set:
            # Without a checkpoint: the pump has its own.
            self._moved.clear()
        else:
            await self._moved.wait()
        self.is_noted = False

    async def wait_for_room(self) -> None:
        """Wait until something was read or advanced; for as many as like to."""
        # Not the pump's event: that one stays set for as long as the pump awaits an advance.
        self.is_noted = False
        await self._room.wait()
