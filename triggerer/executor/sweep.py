"""Decides when an executor sweeps. A sweep searches the store for changes that no wake-up announced."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

from triggerer.errors import TransientStoreError

_SOON_S: Final = 1.0


class SweepSchedule:
    """Computes the time of the next sweep: at regular intervals, or at once on request.

    Args:
        now: A monotonic clock, in seconds.
    """

    def __init__(self, every: timedelta, now: Callable[[], float] = time.monotonic) -> None:
        self._every_s = every.total_seconds()
        self._now = now
        self._due = -math.inf

    @property
    def wait_s(self) -> float:
        """The number of seconds until the next sweep; zero if it is due."""
        return max(0.0, self._due - self._now())

    def ask(self) -> None:
        """Request a sweep at once. If a sweep is being made, another sweep follows."""
        self._due = -math.inf

    def ask_soon(self) -> None:
        """Request a sweep within a second. The caller expects a change that is not in the store yet."""
        self._due = min(self._due, self._now() + _SOON_S)

    @contextmanager
    def sweeping(self) -> Iterator[None]:
        """The caller makes the sweep inside this block. If the store fails, the sweep is due again."""
        # Set the time before the sweep, so that a request during the sweep causes another sweep.
        self._due = self._now() + self._every_s
        try:
            yield
        except TransientStoreError:
            self.ask()
            raise
