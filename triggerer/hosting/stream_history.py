"""Remembers the last hour of this instance's streams, so that the web page can draw their lag and their messages.

A stream has two values for each minute: the highest consumer lag, and the number of received messages.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from triggerer.domain.live_state import StreamHistory, StreamLive

MINUTES: Final = 60
"""How many minutes are remembered for each stream.

The histories of 100 streams add some 60 KB to each report of the live state that the instance writes to the store.
"""


def _clock() -> Callable[[], float]:
    """Return a clock in seconds since 1970.

    The clock does not jump when the system's time is set, and it counts the time for which the machine is suspended.
    """
    started = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return lambda: started + time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(slots=True)
class _Series:
    minute: int
    """The number of the newest minute since 1970."""
    lag: deque[int | None] = field(default_factory=lambda: deque(maxlen=MINUTES))
    consumed: deque[int | None] = field(default_factory=lambda: deque(maxlen=MINUTES))
    epoch: int | None = None
    total: int = 0
    """How many messages the stream had consumed in this epoch when `add` was last called."""

    def add(self, live: StreamLive, minute: int) -> None:
        missed = min(minute - self.minute, MINUTES) if self.lag else 1
        self.minute = minute
        for series in (self.lag, self.consumed):
            series.extend([None] * missed)
        if live.lag_messages is not None:
            self.lag[-1] = max(self.lag[-1] or 0, live.lag_messages)
        if live.epoch != self.epoch or live.consumed < self.total:
            self.epoch, self.total = live.epoch, 0
        self.consumed[-1] = (self.consumed[-1] or 0) + live.consumed - self.total
        self.total = live.consumed

    def history(self) -> StreamHistory:
        newest = self.minute * 60
        return StreamHistory(newest, tuple(self.lag), tuple(self.consumed))


class StreamHistories:
    """The histories of all streams that this instance owns.

    Histories are only in memory. So an instance that takes over a stream begins a new history.

    Args:
        clock: Returns the seconds since 1970, and never goes back.
    """

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or _clock()
        self._series: dict[str, _Series] = {}

    def add(self, streams: Sequence[StreamLive]) -> list[StreamLive]:
        """Record the streams' current lag and messages, and return the streams with their histories.

        Histories of other streams are dropped.
        """
        now = int(self._clock() // 60)
        self._series = {
            live.stream_id: self._series.get(live.stream_id) or _Series(now) for live in streams
        }
        for live in streams:
            self._series[live.stream_id].add(live, now)
        return [replace(live, history=self._series[live.stream_id].history()) for live in streams]
