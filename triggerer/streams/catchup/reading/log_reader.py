"""Reads messages of a log's lane before the filter asks for them, in a task of its own."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Hashable
from contextlib import aclosing
from typing import Final

from triggerer.abc import SharedStreamProducer
from triggerer.domain.watchers.lane_positions import Position
from triggerer.errors import PluginError
from triggerer.streams.cancellation import plugin_code
from triggerer.streams.catchup.reading.lane_tail import LogMessage
from triggerer.synchronization import AutoResetEvent

_MOST: Final = 1_024
"""The most messages that are read ahead. While the filter processes them, the broker's next answer arrives."""
_MOST_BYTES: Final = 1024 * 1024


class LogReader:
    """One reading of one lane. `run` reads ahead, up to a limit of messages and bytes.

    Args:
        on_arrival: Called in three cases: the first message since the last `take` has arrived, the reading has failed,
            or the producer has reported a position before which no message is left (`nothing_before`).
    """

    def __init__(
        self,
        producer: SharedStreamProducer,
        lane: Hashable,
        position: Position,
        on_arrival: Callable[[], None],
    ) -> None:
        self.error: Exception | None = None
        self.nothing_before: Position | None = None
        """The producer reported that the lane has no further message before this position.

        None: the producer has reported no position since the last message.
        """
        self._producer = producer
        self._lane = lane
        self._position = position
        self._on_arrival = on_arrival
        self._messages: list[LogMessage] = []
        self._size_bytes = 0
        self._has_room = AutoResetEvent()

    def take(self) -> list[LogMessage]:
        """Return the messages that were read since the last call, in order."""
        messages, self._messages = self._messages, []
        self._size_bytes = 0
        self._has_room.set()
        return messages

    async def run(self) -> None:
        """Read until cancelled, or until the reading fails with `error`."""
        try:
            with plugin_code(f"read_lane() of {self._lane!r}"):
                await self._read()
            raise PluginError(f"read_lane() of {type(self._producer).__qualname__} returned")
        except Exception as error:
            self.error = error
            self._on_arrival()

    async def _read(self) -> None:
        producer = self._producer
        pairs = producer.read_lane_reporting(self._lane, self._position, self._mark_passed)
        if not isinstance(pairs, AsyncGenerator):
            raise PluginError(
                f"read_lane() of {type(producer).__qualname__} returned {type(pairs).__qualname__}",
                hint="write it as an async generator: `async def` with `yield`",
            )
        async with aclosing(pairs):
            get_position, get_size = producer.get_position, producer.get_size
            async for event, payload in pairs:
                self.nothing_before = None
                self._messages.append(LogMessage(get_position(payload), event, payload))
                self._size_bytes += get_size(payload)
                if len(self._messages) == 1:
                    # Further messages need no call, because a caller waits only after `take` has returned an empty
                    # list.
                    self._on_arrival()
                while len(self._messages) >= _MOST or self._size_bytes >= _MOST_BYTES:
                    await self._has_room.wait()

    def _mark_passed(self, position: Position) -> None:
        """Record the producer's report that every message before this position was read."""
        self.nothing_before = position
        self._on_arrival()
