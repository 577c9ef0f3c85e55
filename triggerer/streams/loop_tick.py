"""A flag that tells whether other tasks may have run. Cheap enough for code that runs for each message."""

from __future__ import annotations

import asyncio


class LoopTick:
    """`has_turned` is True if the event loop has run other callbacks since the last call of `watch`."""

    __slots__ = ("_loop", "has_turned")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.has_turned = True

    def watch(self) -> None:
        """Set `has_turned` to False until the event loop's next iteration."""
        if self.has_turned:
            self.has_turned = False
            self._loop.call_soon(self._record_turn)

    def _record_turn(self) -> None:
        self.has_turned = True
