"""When the store is next asked for what no announcement tells of."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from triggerer.errors import TransientStoreError


class SweepSchedule:
    """When the next sweep is due: regularly, and at once where somebody asks for one. Synchronous.

    Args:
        now: A monotonic clock, in seconds.
    """

    def __init__(self, every: timedelta, now: Callable[[], float] = time.monotonic) -> None:
        self._every_s = every.total_seconds()
        self._now = now
        self._due = -math.inf

    @property
    def wait_s(self) -> float:
        """How long it is until the next one, in seconds; zero if it is due."""
        return max(0.0, self._due - self._now())

    def ask(self, within_s: float = 0.0) -> None:
        """Have one made within this time, or, if one is under way, another one after it."""
        self._due = min(self._due, self._now() + within_s)

    @contextmanager
    def sweeping(self) -> Iterator[None]:
        """While one is made. If the store fails, it is due again."""
        # Before it: whoever asks for a sweep while this one asks the store, asks for another one.
        self._due = self._now() + self._every_s
        try:
            yield
        except TransientStoreError:
            self.ask()
            raise
