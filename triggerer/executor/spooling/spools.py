"""Starts the process that writes a run's events into files, and deletes the files after the run."""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import anyio
import structlog

from triggerer.domain.attempts import RunOrder
from triggerer.processes.child_process import ChildProcess
from triggerer.processes.ipc import ChannelClosed
from triggerer.store.database.transactions import Database
from triggerer.synchronization import AutoResetEvent

_log = structlog.get_logger(__name__)

_MODULE: Final = "triggerer.executor.spooling.child"
_LOCK: Final = "lock"
_AT_ONCE: Final = 2
"""The most processes that write at the same time. Further runs wait, because all processes share the processors."""


class Spools:
    """The folder `home/spool`: a folder for each executor, and in it a folder for each run that reads spooled events.

    While an executor lives, it keeps a file in its folder locked. An executor that starts deletes the folders whose
    file is not locked. A folder's name begins with a dot until the file is locked, and no executor deletes such a
    folder. If its executor dies at that moment, the empty folder stays.
    """

    def __init__(self, database: Database, home: Path) -> None:
        self._database = database
        self._root = home.resolve() / "spool"
        # An executor's id has colons, and Hadoop's file systems do not accept a colon in a name.
        self._folder = self._root / uuid4().hex
        self._lock: int | None = None
        self._making = threading.Lock()
        """Locked by a thread while it makes `_folder`."""
        self._limit = anyio.CapacityLimiter(_AT_ONCE)
        self._is_usable = find_spec("pyarrow") is not None
        self._runs: dict[int, Path] = {}
        """The folders of runs, by the run's primary key."""
        self._ended: list[Path] = []
        self._has_ended = AutoResetEvent()

    async def run(self) -> None:
        """Delete the files of dead executors. Then, until cancelled, delete the files of each run that ends.

        Cancellation: All files of this executor are deleted.
        """
        try:
            await anyio.to_thread.run_sync(self._delete_left)
            while True:
                await self._has_ended.wait()
                self._has_ended.clear()
                while self._ended:
                    await anyio.to_thread.run_sync(_delete, self._ended.pop())
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self._close)

    def drop_nowait(self, run_pk: int) -> None:
        """Let `run` delete the files of a run that has ended."""
        folder = self._runs.pop(run_pk, None)
        if folder is not None:
            self._ended.append(folder)
            self._has_ended.set()

    def _delete_left(self) -> None:
        for folder in self._root.glob("[!.]*"):
            if folder == self._folder:
                continue
            # OSError: a live process has locked the file, or the file cannot be opened.
            with suppress(OSError):
                lock = _lock(folder)
                _delete(folder)
                os.close(lock)

    async def write(self, order: RunOrder, fields: Mapping[str, Any]) -> dict[str, Any] | None:
        """Write events into files. Return the paths of the files and the number of events.

        None: the files cannot be written, and the log says why. Then the run reads the events by pages.

        Args:
            fields: `about` has the asset's `uri`, or an `alias`. Events after `last_id` are ignored. If `as_text` is
                true, `extra` is written as JSON text. If `triggering` is true, only the events that triggered the run
                are written.
        Raises:
            KeyError, TypeError: The fields are malformed. Our own code never sends such fields.
        """
        about = {
            name: str(fields["about"][name]) for name in ("uri", "alias") if name in fields["about"]
        }
        events = {"last_id": int(fields["last_id"]), **about}
        if fields["triggering"]:
            events["run_pk"] = order.run_pk
        try:
            reply = await self._write_in_child(order, bool(fields["as_text"]), events)
        except OSError as error:
            reply = {"error": str(error)}
        if "error" in reply:
            _log.warning(
                "events are not spooled", run=order.run_id, dag=order.dag_id, reason=reply["error"]
            )
            return None
        return reply

    async def _write_in_child(
        self, order: RunOrder, as_text: bool, events: Mapping[str, Any]
    ) -> dict[str, Any]:
        if not self._is_usable:
            return {"error": "pyarrow is not installed"}
        async with self._limit:
            folder = await anyio.to_thread.run_sync(self._new_folder, order.run_pk)
            return await _ask_child(
                {
                    "url": self._database.url.render_as_string(hide_password=False),
                    "folder": str(folder),
                    "as_text": as_text,
                    "events": events,
                }
            )

    def _new_folder(self, run_pk: int) -> Path:
        with self._making:
            if self._lock is None:
                self._lock = self._make_folder()
        folder = self._runs.setdefault(run_pk, self._folder / f"run-{run_pk}-{uuid4().hex[:8]}")
        made = folder / uuid4().hex[:8]
        made.mkdir(parents=True)
        return made

    def _make_folder(self) -> int:
        """Make this executor's folder, and return the descriptor of its locked file."""
        unlocked = self._root / f".{self._folder.name}"
        unlocked.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = _lock(unlocked)
        try:
            unlocked.rename(self._folder)
        except OSError:
            os.close(lock)
            raise
        return lock

    def _close(self) -> None:
        self._runs.clear()
        if self._lock is not None:
            _delete(self._folder)
            os.close(self._lock)
            self._lock = None


def _delete(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


async def _ask_child(order: dict[str, Any]) -> dict[str, Any]:
    """Start the child process, send it the order, and return its answer.

    Raises:
        OSError: The process cannot be started.
    """
    process = await ChildProcess.start(_MODULE, captures_output=True)
    reply: dict[str, Any] = {}
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(process.supervise)
            try:
                await process.channel.send(order)
                reply = await process.channel.receive()
            except ChannelClosed:
                code = await process.reap()
                reply = {"error": f"the process ended with {code}: {process.output}"}
            tasks.cancel_scope.cancel()
    finally:
        await process.aclose()
    return reply


def _lock(folder: Path) -> int:
    """Lock the folder's file, and return the file's descriptor.

    Raises:
        OSError: Another process has locked the file, or the file cannot be opened.
    """
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
