"""The slots for reading lanes of one stream again, beside the poll, shared by all watchers that are behind."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import anyio

from triggerer.streams.clock import Clock

_STUCK_S: Final = 5.0
"""How long a filter may handle the last messages before a waiting reader receives the slot."""


class Reading:
    """A slot, until `end`."""

    def __init__(self, readers: ReaderSlots, on_asked: Callable[[], None]) -> None:
        self.scope = anyio.CancelScope()
        """The scope of the reading task."""
        self.is_idle = False
        """Whether the reader has waited for a while at the apparent end of its lane."""
        self.lent_at: float | None = None
        """Since when the filter handles the last messages, by the monotonic clock; None: it has asked for more."""
        self.is_over = False
        self.has_answered = False
        """Whether the log has answered. Before, the lane may be slow rather than at its end."""
        self._readers = readers
        self._on_asked = on_asked
        self._empty_since: float | None = None

    def empty_since(self) -> float:
        """Return since when no message has arrived, by the loop's clock. Call it only while there is none."""
        if self._empty_since is None:
            self._empty_since = anyio.current_time()
        return self._empty_since

    def record_messages(self) -> None:
        """Record that messages have arrived."""
        self.is_idle, self._empty_since = False, None
        self.has_answered = True

    def ask(self) -> None:
        """Ask an idle reader to give its slot to a waiting one."""
        self.is_idle, self._empty_since = False, -math.inf
        self._on_asked()

    def end(self) -> None:
        """Stop reading and release the slot.

        Does nothing if the reading was ended before, because its filter was stuck.
        """
        if not self.is_over:
            self.is_over = True
            self.scope.cancel()
            self._readers.record_end(self)


class ReaderSlots:
    """The slots of one stream: first come, first served.

    A waiting reader receives the slot of an idle reader, or of a reader whose filter is stuck.
    """

    def __init__(self, most: int, clock: Clock) -> None:
        self._clock = clock
        self._places = anyio.Semaphore(most, fast_acquire=True)
        self._readings: dict[Reading, None] = {}

    @property
    def is_free(self) -> bool:
        """Whether a slot is free."""
        return self._places.value > 0

    @property
    def are_wanted(self) -> bool:
        """Whether a reader waits for a slot."""
        return self._places.statistics().tasks_waiting > 0

    async def begin(self, on_asked: Callable[[], None]) -> Reading:
        """Wait for a slot.

        Args:
            on_asked: Called when another reader waits for the slot while this one is idle.
        """
        if self.is_free:
            self._places.acquire_nowait()
        else:
            await self._wait_for_place()
        reading = Reading(self, on_asked)
        self._readings[reading] = None
        return reading

    async def _wait_for_place(self) -> None:
        for reading in self._readings:
            if reading.is_idle:
                reading.ask()
                break
        has_place = False
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._end_stuck)
                await self._places.acquire()
                has_place = True
                tasks.cancel_scope.cancel()
        except BaseException:
            if has_place:
                self._places.release()
            raise

    async def _end_stuck(self) -> None:
        clock = self._clock
        while True:
            await clock.sleep_until(clock.monotonic() + _STUCK_S)
            latest = clock.monotonic() - _STUCK_S
            for reading in self._readings:
                if reading.lent_at is not None and reading.lent_at <= latest:
                    reading.end()
                    break

    def record_end(self, reading: Reading) -> None:
        del self._readings[reading]
        self._places.release()
