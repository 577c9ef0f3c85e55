"""Starts the process that writes a run's events into files, and deletes the files after the run."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import anyio
import structlog

from triggerer.domain.attempts import RunOrder
from triggerer.executor.owned_folders import delete, left_folders, make_owned
from triggerer.processes.child_process import ChildProcess
from triggerer.processes.ipc import ChannelClosed
from triggerer.store.database.transactions import Database
from triggerer.synchronization import AutoResetEvent

_log = structlog.get_logger(__name__)

_MODULE: Final = "triggerer.executor.spooling.child"
_AT_ONCE: Final = 2
"""The most child processes that write events at the same time.

Further runs wait, because more processes would take processor time from one another.
"""


class Spools:
    """The folder `home/spool`: a folder for each executor, and in it a folder for each run that reads spooled events.

    An executor that starts deletes the folders that dead executors left, see `owned_folders`.
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
                    await anyio.to_thread.run_sync(delete, self._ended.pop())
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
        for folder in left_folders(self._root, self._folder):
            delete(folder)

    async def write(self, order: RunOrder, fields: Mapping[str, Any]) -> dict[str, Any] | None:
        """Write events into files. Return the paths of the files and the number of events.

        Return None if the files cannot be written. Then the run reads the events by pages.

        Args:
            fields: `about` has the asset's `uri`, or an `alias`. `last_id` is the last event to write. If `as_text` is
                true, write `extra` as JSON text. If `triggering` is true, write only the events that triggered the run.
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
                self._lock = make_owned(self._folder)
        folder = self._runs.setdefault(run_pk, self._folder / f"run-{run_pk}-{uuid4().hex[:8]}")
        made = folder / uuid4().hex[:8]
        made.mkdir(parents=True)
        return made

    def _close(self) -> None:
        self._runs.clear()
        if self._lock is not None:
            delete(self._folder)
            os.close(self._lock)
            self._lock = None


async def _ask_child(order: dict[str, Any]) -> dict[str, Any]:
    """Send the order to a new child process, and return the answer.

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
