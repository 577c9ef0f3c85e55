"""Limits how many lanes of a stream's log are read at the same time for watchers that are behind."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import anyio

from triggerer.streams.clock import Clock

_STUCK_S: Final = 5.0
"""A filter counts as stuck if it works for longer than this on the messages that it received last."""


class Reading:
    """A reader's use of a slot, until `end`."""

    def __init__(self, readers: ReaderSlots, on_release_requested: Callable[[], None]) -> None:
        self.scope = anyio.CancelScope()
        """The scope of the reading task."""
        self.is_idle = False
        """True if the reader has waited for a while at the apparent end of its lane."""
        self.lent_at: float | None = None
        """When the filter received its last messages, by the monotonic clock. None: the filter waits for messages."""
        self.is_over = False
        self.has_answered = False
        """True once the log has answered. Without an answer, the log may be slow, or the lane may have no message."""
        self._readers = readers
        self._on_release_requested = on_release_requested
        self._empty_since: float | None = None

    def empty_since(self) -> float:
        """Return when the reader ran out of messages, by the loop's clock. Call this only while the reader has none."""
        if self._empty_since is None:
            self._empty_since = anyio.current_time()
        return self._empty_since

    def record_messages(self) -> None:
        """Record that messages have arrived."""
        self.is_idle, self._empty_since = False, None
        self.has_answered = True

    def request_release(self) -> None:
        """Ask this idle reader to give its slot to a waiting reader."""
        self.is_idle, self._empty_since = False, -math.inf
        self._on_release_requested()

    def end(self) -> None:
        """Stop reading and release the slot. Does nothing if `ReaderSlots` has ended the reading of a stuck filter."""
        if not self.is_over:
            self.is_over = True
            self.scope.cancel()
            self._readers.record_end(self)


class ReaderSlots:
    """The reader slots of one stream, given to readers in the order of their requests.

    If no slot is free, the next reader gets the slot of an idle reader, or of a reader whose filter is stuck.
    """

    def __init__(self, most: int, clock: Clock) -> None:
        self._clock = clock
        self._slots = anyio.Semaphore(most, fast_acquire=True)
        self._readings: dict[Reading, None] = {}

    @property
    def is_free(self) -> bool:
        """Whether a slot is free."""
        return self._slots.value > 0

    @property
    def are_wanted(self) -> bool:
        """Whether a reader waits for a slot."""
        return self._slots.statistics().tasks_waiting > 0

    async def begin(self, on_release_requested: Callable[[], None]) -> Reading:
        """Wait for a slot.

        Args:
            on_release_requested: Called when this reader is idle and another reader waits for a slot.
        """
        if self.is_free:
            self._slots.acquire_nowait()
        else:
            await self._wait_for_slot()
        reading = Reading(self, on_release_requested)
        self._readings[reading] = None
        return reading

    async def _wait_for_slot(self) -> None:
        for reading in self._readings:
            if reading.is_idle:
                reading.request_release()
                break
        has_slot = False
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._end_stuck)
                await self._slots.acquire()
                has_slot = True
                tasks.cancel_scope.cancel()
        except BaseException:
            if has_slot:
                self._slots.release()
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
        self._slots.release()
