"""Copies the logs of ended runs to a bucket: `[logs] ship`.

After the end of a run that this executor claimed, the run's log is copied at least once, except in the two cases below.
No run waits for the bucket.

Until a log is copied, a file below `<home>/unshipped` names the log. This file is the log's *marker*. An executor that
starts copies the logs that dead executors with the same home left. A log is not copied in two cases:

- The log or the home directory is lost.
- The executor is killed before it has written the log's marker.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from itertools import islice
from pathlib import Path
from typing import Final
from uuid import uuid4

import anyio
import structlog
from anyio import to_thread
from anyio.abc import TaskStatus

from triggerer.backoff import Backoff, warn_seldom
from triggerer.errors import BucketError
from triggerer.executor.owned_folders import LOCK, delete, left_folders, make_owned
from triggerer.shipped_logs.bucket import CHUNK_BYTES, Bucket, open_bucket
from triggerer.shipped_logs.destinations import LogDestination
from triggerer.synchronization import AutoResetEvent
from triggerer.worker.logs.reading import parts_of

_log = structlog.get_logger(__name__)

_AT_ONCE: Final = 4
"""The most logs that are copied at the same time. Each takes up to `CHUNK_BYTES` of memory."""
_KEPT_OPEN_S: Final = 30.0
"""How long the bucket's client stays open while no log waits."""
_LAST_S: Final = 5.0
"""How long a stopped executor still copies logs."""


class LogShipper:
    """Copies logs, several at a time.

    Args:
        home: The executor's home. The logs are in `<home>/logs`.
        host: The name of this machine, which is a part of the copies' keys.
    """

    def __init__(self, home: Path, destination: LogDestination, host: str) -> None:
        self._logs = home.resolve() / "logs"
        self._root = home.resolve() / "unshipped"
        self._markers = self._root / uuid4().hex
        """The folder of this process, see `owned_folders`."""
        self._lock: int | None = None
        """Owns the folder. None: it could not be made yet, for instance because the disk is full."""
        self._destination = destination
        self._host = host
        self._waiting: dict[str, None] = {}
        """Paths below the logs' folder, in the order of copying."""
        self._changed = AutoResetEvent()
        self._expected: list[str] = []
        self._has_expected = AutoResetEvent()

    def expect(self, log_path: str) -> None:
        """Announce a run that is about to begin, so that its log is copied even if this process dies during the run."""
        self._expected.append(self._file(log_path))
        self._has_expected.set()

    def ship(self, log_path: str) -> None:
        """Copy the log soon. Call this when the run has ended, and again after each later addition to its log."""
        self._waiting[self._file(log_path)] = None
        self._changed.set()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Copy logs until cancelled, first the logs that dead processes left.

        Cancellation: Logs are copied for up to 5 s more. The remaining logs are copied after the next start.
        """
        await to_thread.run_sync(self._take_over)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._write_markers)
                task_status.started()
                await self._ship_all()
        finally:
            with anyio.move_on_after(_LAST_S, shield=True), suppress(BucketError):
                if self._waiting:
                    async with open_bucket(self._destination.bucket) as bucket:
                        await self._ship_waiting(bucket)
            with anyio.move_on_after(_LAST_S, shield=True):
                await to_thread.run_sync(self._leave_markers, abandon_on_cancel=True)

    async def _ship_all(self) -> None:
        backoff = Backoff(first=1.0, longest=60.0)
        while True:
            if not self._waiting:
                await self._changed.wait()
            try:
                async with open_bucket(self._destination.bucket) as bucket:
                    while self._waiting:
                        await self._ship_waiting(bucket)
                        backoff.reset()
                        await self._changed.wait_for(_KEPT_OPEN_S)
            except BucketError as error:
                delay = backoff.next_delay()
                text, waiting = "logs wait for their bucket", len(self._waiting)
                warn_seldom(_log, backoff.failures, text, logs=waiting, error=str(error))
                await anyio.sleep(delay)

    async def _write_markers(self) -> None:
        """Write a marker for the log of each announced run. The run does not wait for the marker."""
        failures = 0
        while True:
            await self._has_expected.wait()
            files, self._expected = self._expected, []
            errors = await to_thread.run_sync(
                self._write_marker_files, files, abandon_on_cancel=True
            )
            failures = failures + 1 if errors else 0
            if errors:
                # Only warn: the marker of a log is needed only if this process dies before it has copied the log.
                warn_seldom(
                    _log,
                    failures,
                    "the markers of logs cannot be written",
                    logs=len(errors),
                    error=str(errors[0]),
                )

    def _write_marker_files(self, files: list[str]) -> list[OSError]:
        """Write a marker for each of these logs. Return the errors of the markers that cannot be written."""
        errors = []
        for file in files:
            try:
                self._own_folder()
                self._marker_path(file).write_text(file)
            except OSError as error:
                errors.append(error)
        return errors

    def _own_folder(self) -> None:
        if self._lock is None:
            self._lock = make_owned(self._markers)

    def _take_over(self) -> None:
        """Take over the markers of dead processes. A later process takes the markers that cannot be taken over now."""
        errors: list[OSError] = []
        try:
            self._own_folder()
            for folder in left_folders(self._root, self._markers):
                failed = self._take_over_folder(folder)
                errors += failed
                if not failed:
                    delete(folder)
        except OSError as error:
            errors.append(error)
        if errors:
            _log.warning("the logs of dead executors cannot be taken over", error=str(errors[0]))

    def _take_over_folder(self, folder: Path) -> list[OSError]:
        """Take over the markers of a dead process. Return the errors of the markers that cannot be taken over."""
        errors = []
        for marker in _markers_in(folder):
            try:
                file = marker.read_text(errors="replace")
                # Another marker is incomplete, and names no log, because the process died or the disk was full.
                if marker.name == _marker_name(file):
                    marker.rename(self._marker_path(file))
                    self._waiting[file] = None
            except OSError as error:
                errors.append(error)
        return errors

    def _leave_markers(self) -> None:
        """Let another process take over the markers. If there is none, delete their folder."""
        if self._lock is None:
            return
        # OSError: for instance, the home was deleted.
        with suppress(OSError):
            if not _markers_in(self._markers):
                delete(self._markers)
        os.close(self._lock)
        self._lock = None

    async def _ship_waiting(self, bucket: Bucket) -> None:
        """Copy all waiting logs.

        Raises:
            BucketError: The bucket refused a log or did not answer. All logs that were not copied wait for the next
                call.
        """
        while self._waiting:
            errors: list[BucketError] = []
            async with anyio.create_task_group() as copies:
                for file in tuple(islice(self._waiting, _AT_ONCE)):
                    copies.start_soon(self._copy, bucket, file, errors)
            if errors:
                raise errors[0]

    async def _copy(self, bucket: Bucket, file: str, errors: list[BucketError]) -> None:
        # Remove the log first, so that `ship` can add it again while it is copied.
        del self._waiting[file]
        try:
            # Without `aclosing`, the file would stay open until the generator is collected.
            async with aclosing(_chunks(self._logs / file)) as chunks:
                await bucket.put(self._destination.key_below(self._host, file), chunks)
        except FileNotFoundError:
            # The run has no log on this machine, or its log was deleted.
            pass
        except OSError as error:
            _log.warning("a log cannot be copied", log=file, error=str(error))
            return
        except BucketError as error:
            self._waiting[file] = None
            errors.append(error)
            return
        except BaseException:
            self._waiting[file] = None
            raise
        if file not in self._waiting:
            try:
                await to_thread.run_sync(lambda: self._marker_path(file).unlink(missing_ok=True))
            except OSError as error:
                # The next process finds the marker, and copies the log again.
                _log.warning("the marker of a log cannot be deleted", log=file, error=str(error))

    def _file(self, log_path: str) -> str:
        return Path(log_path).relative_to(self._logs).as_posix()

    def _marker_path(self, file: str) -> Path:
        return self._markers / _marker_name(file)


def _marker_name(file: str) -> str:
    return hashlib.sha256(file.encode()).hexdigest()


def _markers_in(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.name != LOCK]


async def _chunks(path: Path) -> AsyncGenerator[bytes, None]:
    """Yield the log in chunks of `CHUNK_BYTES`. The last chunk may be smaller.

    The result lacks the bytes that were cut because the log was too long, see `triggerer.worker.logs.limit`.

    Raises:
        OSError: The log cannot be read.
    """
    with await to_thread.run_sync(lambda: path.open("rb", buffering=0)) as log:
        parts = parts_of(log)

        def next_chunk() -> bytes:
            chunk = bytearray()
            while len(chunk) < CHUNK_BYTES and (part := next(parts, None)) is not None:
                chunk += part[1]
            return bytes(chunk)

        while chunk := await to_thread.run_sync(next_chunk):
            yield chunk
