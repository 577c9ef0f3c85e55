"""Watches the DAGs folder, so that the DAG processor scans the folder soon after a change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import anyio
import structlog
from watchfiles import Change, awatch

from triggerer.dag_processing.own_thread import OwnThread

_log = structlog.get_logger(__name__)

# Changes within these times are reported together, because editors and git write in bursts.
_STEP_MS: Final = 50
_DEBOUNCE_MS: Final = 400
_LOOKUP_INTERVAL_S: Final = 1.0


class _FolderId(NamedTuple):
    device: int
    inode: int


class FolderWatch:
    """Calls `on_change` when something below the folder may have changed.

    The operating system watches a folder, not a path. After a move or a mount, the path may lead to another folder. So
    the path is looked up once a second. The watch then moves to the other folder, and calls `on_change`.

    Args:
        interval_s: How long to wait after a watch failed before trying again.
    """

    def __init__(self, folder: Path, on_change: Callable[[], None], *, interval_s: float) -> None:
        self._folder = folder
        self._on_change = on_change
        self._interval_s = interval_s
        self._id = _folder_id(folder)
        self._end = anyio.Event()
        self._complaint: str | None = None
        self._thread = OwnThread()

    async def run(self) -> None:
        """Watch until cancelled. The watch is set up before this coroutine first suspends: no later change is missed.

        Cancellation: The thread that waits for changes is asked to end.
        """
        await self._follow(self._id)
        while True:
            async with anyio.create_task_group() as tasks:
                # The new task calls `on_change` when this task first suspends. By then `_follow` has set up the new
                # watch, so no change is missed.
                tasks.start_soon(_call, self._on_change)
                await self._follow(self._id)

    def renew_nowait(self) -> None:
        """Set up the watch again, because an unreadable part may be readable now."""
        self._end.set()

    async def _follow(self, watched: _FolderId | None) -> None:
        """Watch the folder at the path until the path leads elsewhere, or until `renew_nowait` is called."""
        end = self._end = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._end_when_replaced, watched, end)
            if watched is None:
                await end.wait()
            else:
                retry_s = await self._watch(end)
                with anyio.move_on_after(retry_s):
                    await end.wait()
            tasks.cancel_scope.cancel()

    async def _watch(self, end: anyio.Event) -> float:
        """Watch until `end`, or until the watch fails. Return the number of seconds until the next try."""
        try:
            # `changes` does not tell which files changed: watchfiles may merge changes, or report a file's old name.
            async for changes in awatch(
                self._folder,
                watch_filter=None,
                debounce=_DEBOUNCE_MS,
                step=_STEP_MS,
                recursive=True,
                stop_event=end,
            ):
                self._on_change()
                if (Change.deleted, str(self._folder)) in changes:
                    # The watch is gone with the folder. A look-up of the path may not notice a new folder, because the
                    # new folder may have the same inode.
                    return 0.0
        except FileNotFoundError:
            return _LOOKUP_INTERVAL_S  # the folder, or a folder below it, was deleted while the watch was set up
        except Exception as error:  # noqa: BLE001  (watchfiles may raise any error of the operating system)
            # The folder is unreadable, or no watch, descriptor or thread is available. The periodic scans go on.
            complaint = str(_innermost(error))
            if complaint != self._complaint:
                _log.warning(
                    "Cannot watch the DAGs folder",
                    folder=str(self._folder),
                    error=complaint,
                    hint="changes are found by periodic scans meanwhile; the limits of a user's watches are"
                    " fs.inotify.max_user_instances and max_user_watches",
                    look_every_s=self._interval_s,
                )
            self._complaint = complaint
            return self._interval_s
        self._complaint = None
        return 0.0

    async def _end_when_replaced(self, watched: _FolderId | None, end: anyio.Event) -> None:
        try:
            while self._id == watched:
                await anyio.sleep(_LOOKUP_INTERVAL_S)
                self._id = await self._thread.call(_folder_id, self._folder)
        finally:
            # awatch waits in a thread, 5 s at a time. A cancellation does not reach that thread, but this event does.
            end.set()


def _folder_id(folder: Path) -> _FolderId | None:
    """Follow links, and return the identity of the folder at the path, or None if there is no folder."""
    try:
        status = folder.stat()
    except OSError:
        return None
    return _FolderId(status.st_dev, status.st_ino)


def _innermost(error: Exception) -> Exception:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


async def _call(function: Callable[[], None]) -> None:
    function()
