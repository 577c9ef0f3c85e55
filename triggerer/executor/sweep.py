"""When the store is next asked for what no announcement tells of."""

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

    def ask(self) -> None:
        """Have one made at once, or, if one is under way, another one after it."""
        self._due = -math.inf

    def ask_soon(self) -> None:
        """Have one made within a second: what is to be found is not there yet."""
        self._due = min(self._due, self._now() + _SOON_S)

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
