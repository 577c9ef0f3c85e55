"""What a producer without a broker has stored of its place in the source: one JSON value for each stream."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from triggerer.domain.events import Fence

MAX_STATE_BYTES: Final = 1024 * 1024
"""The most that a state may have as JSON: it is written anew at each change."""


@dataclass(frozen=True, slots=True)
class StateChange:
    """The state that a stream is to have, under its lease."""

    fence: Fence
    key: Hashable
    """The stream's key; the store goes by the fence."""
    value: bytes
    """JSON."""
    on_done: Callable[[Exception | None], None]
    """Called once, on the event loop: None when it is durable. Must not raise."""


class StateStore(Protocol):
    """Where the runtime has states stored."""

    async def load(self, fence: Fence, key: Hashable) -> Any:
        """The value that was stored last for the stream of this fence, and of this key; None if there is none.

        Raises:
            StoreError: It cannot be read now.
        """

    def submit_nowait(self, change: StateChange) -> None:
        """Take a change for the next transaction. Those of one stream are stored in this order."""
