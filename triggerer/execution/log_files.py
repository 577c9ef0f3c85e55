"""What the executor reads of a run's log, and adds to it, when the worker is gone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, TypeVar

import anyio
from anyio import to_thread

from triggerer.execution.logs import append_line, tail

T = TypeVar("T")

_PATIENCE_S: Final = 5.0


class LogFiles:
    """Runs' logs as the executor reads and writes them: in a thread, since their file system may hang.

    For one caller at a time. What takes longer than `_PATIENCE_S` is done without, and so is what follows until it has
    ended; the store has the run's end and its error.
    """

    def __init__(self) -> None:
        self._last_has_ended = threading.Event()
        self._last_has_ended.set()

    async def end(self, path: str, run_id: str, how: str) -> None:
        """Append the last line of a run's log, in place of a worker that did not live to write it.

        For when the worker is gone and nobody else can have begun the run.

        Args:
            how: What comes after `run <run_id>:`, such as `failed: the worker ...`.
        """
        await self._in_thread(append_line, path, f"run {run_id}: {how}")

    async def tail(self, path: str) -> str:
        """As `tail`; empty also if the file cannot be read in time."""
        return await self._in_thread(tail, path) or ""

    async def _in_thread(self, function: Callable[..., T], *arguments: str) -> T | None:
        if not self._last_has_ended.is_set():
            return None
        self._last_has_ended = has_ended = threading.Event()

        def call() -> T:
            try:
                return function(*arguments)
            finally:
                has_ended.set()

        # Shielded: what a run came to is noted also by a service that stops.
        with anyio.move_on_after(_PATIENCE_S, shield=True):
            try:
                return await to_thread.run_sync(call, abandon_on_cancel=True)
            except RuntimeError:
                # No thread can be had.
                has_ended.set()
        return None
