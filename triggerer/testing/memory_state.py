"""A `StreamState` that stores a producer's value in memory, for conformance suites and tests."""

from __future__ import annotations

from typing import Any

import orjson
from anyio.lowlevel import checkpoint

from triggerer.abc import StreamState
from triggerer.errors import StoreError
from triggerer.streams.supervision.stream_state import encode_state


class InMemoryState(StreamState):
    """Stores the saved value as JSON, as the real store does, so a producer gets a copy.

    Args:
        value: The state that a predecessor saved.
    """

    def __init__(self, value: Any = None) -> None:
        self._value = value
        self.history: list[Any] = []
        """Every saved value, in order."""
        self.refusal: StoreError | None = None
        """If set, `save` raises this error and saves nothing."""

    @property
    def value(self) -> Any:
        return self._value

    async def save(self, value: Any) -> None:
        encoded = encode_state(value)
        await checkpoint()
        if self.refusal is not None:
            raise self.refusal
        self.put(orjson.loads(encoded))

    def put(self, value: Any) -> None:
        """Set the value, as if a producer had saved it."""
        self._value = value
        self.history.append(value)
