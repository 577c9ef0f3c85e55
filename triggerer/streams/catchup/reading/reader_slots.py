"""How many lanes of a stream are read again at one time, beside the poll, by all who are behind."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import anyio

from triggerer.streams.clock import Clock

_STUCK_S: Final = 5.0
"""How long a filter may have what was read last, before another that waits has the place."""


class Reading:
    """A place among those who read, until `end`."""

    def __init__(self, readers: ReaderSlots, on_asked: Callable[[], None]) -> None:
        self.scope = anyio.CancelScope()
        """Where it reads."""
        self.is_idle = False
        """Whether it has waited for a while at what seems to be the end of its lane."""
        self.lent_at: float | None = None
        """Since when the filter has what was read last, by the monotonic clock; None: it has asked for more."""
        self.is_over = False
        self.has_answered = False
        """Whether the log has given anything. Before, it may be slow, and not at the end of the lane."""
        self._readers = readers
        self._on_asked = on_asked
        self._empty_since: float | None = None

    def empty_since(self) -> float:
        """Since when there was no message, by the loop's clock; to be asked where there is none."""
        if self._empty_since is None:
            self._empty_since = anyio.current_time()
        return self._empty_since

    def record_messages(self) -> None:
        """There are some."""
        self.is_idle, self._empty_since = False, None
        self.has_answered = True

    def ask(self) -> None:
        """Somebody waits for a place, and this one is idle: it has waited long enough."""
        self.is_idle, self._empty_since = False, -math.inf
        self._on_asked()

    def end(self) -> None:
        """Read no more, and let another one read. It may have been ended already: its filter was stuck."""
        if not self.is_over:
            self.is_over = True
            self.scope.cancel()
            self._readers.record_end(self)


class ReaderSlots:
    """The places of one stream: first come, first served.

    Who waits for one gets that of a reader that is idle, or whose filter is stuck: such a one holds up no other.
    """

    def __init__(self, most: int, clock: Clock) -> None:
        self._clock = clock
        self._places = anyio.Semaphore(most, fast_acquire=True)
        self._readings: dict[Reading, None] = {}

    @property
    def is_free(self) -> bool:
        """Whether a place could be had at once."""
        return self._places.value > 0

    @property
    def are_wanted(self) -> bool:
        """Whether somebody waits for a place."""
        return self._places.statistics().tasks_waiting > 0

    async def begin(self, on_asked: Callable[[], None]) -> Reading:
        """Wait for a place.

        Args:
            on_asked: Called when another waits for it while it is idle.
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
