"""The state of a stream in memory, for suites and tests of producers."""

from __future__ import annotations

from typing import Any

import orjson
from anyio.lowlevel import checkpoint

from triggerer.abc import StreamState
from triggerer.errors import StoreError
from triggerer.streams.supervision.stream_state import encode_state


class InMemoryState(StreamState):
    """Keeps what is saved; as in the store, it is JSON, and a producer gets a copy.

    Args:
        value: What a predecessor has left.
    """

    def __init__(self, value: Any = None) -> None:
        self._value = value
        self.history: list[Any] = []
        """All that was saved, in order."""
        self.refusal: StoreError | None = None
        """Set it, and nothing is saved: `save` raises it."""

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
        """Have it hold this value."""
        self._value = value
        self.history.append(value)
