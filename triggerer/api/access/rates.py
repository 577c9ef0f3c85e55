"""Limits the requests of each token, session and run. Each process of the API counts in its own memory."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from typing import Final

from triggerer.errors import TooManyRequests

_WRITES: Final = 2.5
"""The limit for changes is 2.5 times `[api] rate_limit`, which is the limit for reads."""
_BURST_S: Final = 10.0
"""After a pause, a token can send the requests of ten seconds at once. With a limit of 20 a second, that is 200."""
_MOST_TOKENS: Final = 10_000


class Rates:
    """Token buckets. Each API token, session or run has one bucket for reads and another for changes."""

    def __init__(self, reads_per_s: float) -> None:
        self._reads_per_s = reads_per_s
        self._buckets: OrderedDict[tuple[str, bool], tuple[float, float]] = OrderedDict()

    def take(self, who: str, *, is_change: bool, now: float | None = None) -> None:
        """Count one request.

        Args:
            who: The token, session or run, as in `Access.via`.
            now: A time of the monotonic clock. None: the present.
        Raises:
            TooManyRequests: The token, session or run has sent too many requests.
        """
        now = time.monotonic() if now is None else now
        per_s = self._reads_per_s * (_WRITES if is_change else 1)
        most = per_s * _BURST_S
        level, at = self._buckets.pop((who, is_change), (most, now))
        level = min(most, level + (now - at) * per_s)
        is_allowed = level >= 1
        self._buckets[who, is_change] = (level - 1 if is_allowed else level, now)
        if len(self._buckets) > _MOST_TOKENS:
            self._buckets.popitem(last=False)
        if not is_allowed:
            seconds = max(1, math.ceil((1 - level) / per_s))
            raise TooManyRequests(
                "this token makes too many requests",
                retry_after_s=seconds,
                hint=f"ask again in {seconds} s; [api] rate_limit is the limit",
            )
