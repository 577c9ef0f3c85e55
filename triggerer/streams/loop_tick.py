"""Tells whether the event loop has turned, at a cost that suits code which runs for each message."""

from __future__ import annotations

import asyncio


class LoopTick:
    """Tells whether the event loop has turned since `watch` was called, so that other tasks may have run."""

    __slots__ = ("_loop", "has_turned")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.has_turned = True

    def watch(self) -> None:
        """Start watching again."""
        if self.has_turned:
            self.has_turned = False
            self._loop.call_soon(self._record_turn)

    def _record_turn(self) -> None:
        self.has_turned = True
