"""What the executor reads of a run's log, and adds to it, when the worker is gone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

import anyio
from anyio import to_thread

from triggerer.worker.logs import append_line, tail

T = TypeVar("T")

_PATIENCE_S: Final = 5.0


class LogFiles:
    """Runs' logs as the executor reads and writes them: in a thread, since their file system may hang.

    For one caller at a time. What takes longer than `_PATIENCE_S` is done without, and so is what follows until it has
    ended; the store has the run's end and its error.
    """

    def __init__(self) -> None:
        self._works = threading.Lock()
        """Held by the thread while it reads or writes, also when nobody waits for it any more."""

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
        if self._works.locked():
            return None

        def call() -> T:
            with self._works:
                return function(*arguments)

        # Shielded: what a run came to is noted also by a service that stops. RuntimeError: no thread can be had.
        with anyio.move_on_after(_PATIENCE_S, shield=True), suppress(RuntimeError):
            return await to_thread.run_sync(call, abandon_on_cancel=True)
        return None
