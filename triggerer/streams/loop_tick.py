"""Tells whether the event loop has turned, cheaply enough for code that runs for each message."""

from __future__ import annotations

import asyncio


class LoopTick:
    """Tells whether the event loop has turned since `watch` was called, so that other tasks may have run."""

    __slots__ = ("_loop", "has_turned")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.has_turned = True

    def watch(self) -> None:
        """Begin to watch for the next turn of the event loop."""
        if self.has_turned:
            self.has_turned = False
            self._loop.call_soon(self._record_turn)

    def _record_turn(self) -> None:
        self.has_turned = True
