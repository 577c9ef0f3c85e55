"""Tells at once that something in a folder changed, also when its name comes to stand for another folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import anyio
import structlog
from anyio import CapacityLimiter, to_thread
from watchfiles import Change, awatch

_log = structlog.get_logger(__name__)

# Editors and git write in bursts.
_STEP_MS: Final = 50
_DEBOUNCE_MS: Final = 400
_PLACE_INTERVAL_S: Final = 1.0


class _Inode(NamedTuple):
    device: int
    inode: int


class FolderWatch:
    """Calls `tell` when something below the folder may have changed; what did is for the caller to find out.

    The operating system watches a folder, not a name: when the folder is moved away, a link on the way
    to it is switched, or a file system is mounted there, nothing says so. So the name is looked up once
    a second. When it leads elsewhere, the watch is set up anew there, and that is told as well.

    Args:
        interval_s: How long until a watch that could not be set up is tried again.
    """

    def __init__(self, folder: Path, tell: Callable[[], None], *, interval_s: float) -> None:
        self._folder = folder
        self._tell = tell
        self._interval_s = interval_s
        self._inode = _inode_of(folder)
        self._end = anyio.Event()
        self._complaint: str | None = None
        # Of our own: a file system that hangs must not hold the threads that others wait for.
        self._threads = CapacityLimiter(1)

    async def run(self) -> None:
        """Watch until cancelled. The first watch is set up in the first step, so that what follows is told.

        Cancellation: The thread in which it waits is told to end.
        """
        await self._follow(self._inode)
        while True:
            async with anyio.create_task_group() as tasks:
                # Called when this task waits for the first time, with the new watch set up.
                tasks.start_soon(_call, self._tell)
                await self._follow(self._inode)

    def renew_nowait(self) -> None:
        """Set the watch up anew: what could not be watched before may be readable now."""
        self._end.set()

    async def _follow(self, inode: _Inode | None) -> None:
        """Watch what the name stands for, until it stands for something else or the watch is to be renewed."""
        end = self._end = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._end_when_moved, inode, end)
            if inode is None:
                await end.wait()
            else:
                retry_s = await self._watch(end)
                with anyio.move_on_after(retry_s):
                    await end.wait()
            tasks.cancel_scope.cancel()

    async def _watch(self, end: anyio.Event) -> float:
        """Watch until told to end, or for as long as the system can; return when to try again, in seconds."""
        try:
            # What changed is read from the folder itself: a hint that is merged, or that names a
            # folder that was moved, says enough.
            async for changes in awatch(
                self._folder,
                watch_filter=None,
                debounce=_DEBOUNCE_MS,
                step=_STEP_MS,
                recursive=True,
                stop_event=end,
            ):
                self._tell()
                if (Change.deleted, str(self._folder)) in changes:
                    # The watch went with it. One that is made at once may have the same inode: nothing else would tell.
                    return 0.0
        except FileNotFoundError:
            return _PLACE_INTERVAL_S  # it, or a folder in it, went as the watch was set up
        except OSError as error:
            # Not readable, or the system's watches are used up: the periodic look goes on.
            if str(error) != self._complaint:
                _log.warning(
                    "Cannot watch the DAGs folder", folder=str(self._folder), error=str(error)
                )
            self._complaint = str(error)
            return self._interval_s
        self._complaint = None
        return 0.0

    async def _end_when_moved(self, inode: _Inode | None, end: anyio.Event) -> None:
        try:
            while self._inode == inode:
                await anyio.sleep(_PLACE_INTERVAL_S)
                self._inode = await to_thread.run_sync(
                    _inode_of, self._folder, limiter=self._threads, abandon_on_cancel=True
                )
        finally:
            # The watch waits in a thread, 5 s at a time, where no cancellation reaches it.
            end.set()


def _inode_of(folder: Path) -> _Inode | None:
    """Return what the folder's name stands for now, links followed; None where that is nothing."""
    try:
        status = folder.stat()
    except OSError:
        return None
    return _Inode(status.st_dev, status.st_ino)


async def _call(function: Callable[[], None]) -> None:
    function()
