"""The executor's access to the log of a run whose process is gone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

import anyio
import structlog
from anyio import to_thread

from triggerer.worker.logs.hosts import record_host
from triggerer.worker.logs.reading import tail
from triggerer.worker.logs.writing import append_line

_log = structlog.get_logger(__name__)

T = TypeVar("T")

_PATIENCE_S: Final = 5.0


class LogFiles:
    """Reads and writes runs' logs in a thread, because the file system may hang.

    The object does one call at a time, and other callers wait. After `_PATIENCE_S`, a caller stops waiting. If its call
    has begun, the call continues in the thread. Until the thread is free, further calls do nothing, so a log may lack
    its last line.
    """

    def __init__(self) -> None:
        self._turn = anyio.Lock()
        self._works = threading.Lock()
        """Locked by the thread while it reads or writes, even if the caller no longer waits."""

    async def record_host(self, home: Path, executor: str) -> None:
        """Record that this executor writes logs below `home`, see `triggerer.worker.logs.hosts`.

        If this fails, log a warning. Other hosts that share the folder may then be unable to read these logs.
        """
        try:
            await self._in_thread(record_host, home, executor)
        except OSError as error:
            _log.warning("the host of the logs cannot be recorded", error=str(error))

    async def end(self, path: str, run_id: str, how: str) -> None:
        """Append the last line to the log of a run whose process has died, or that no process began.

        Call this method only when the process is gone and no other executor can have begun the run.

        Args:
            how: The text after `run <run_id>:`, such as `failed: the worker ...`.
        """
        await self._in_thread(append_line, path, f"run {run_id}: {how}")

    async def tail(self, path: str) -> str:
        """Return the end of a log, see `worker.logs.reading.tail`. Return an empty text if reading takes too long."""
        return await self._in_thread(tail, path) or ""

    async def _in_thread(self, function: Callable[..., T], *arguments: str | Path) -> T | None:
        def call() -> T:
            with self._works:
                return function(*arguments)

        # Shield the call from cancellation, because the executor also ends logs while the service stops. RuntimeError
        # means that no thread can be started.
        with anyio.move_on_after(_PATIENCE_S, shield=True), suppress(RuntimeError):
            async with self._turn:
                # If the lock is locked, an abandoned call hangs in the thread.
                if not self._works.locked():
                    return await to_thread.run_sync(call, abandon_on_cancel=True)
        return None
