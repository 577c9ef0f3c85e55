"""Stores the definitions of the DAG files, within milliseconds of a change."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import anyio
import structlog
from anyio.abc import TaskStatus
from anyio.lowlevel import checkpoint

from triggerer.backoff import Backoff, log_failure, retry
from triggerer.dag_processing.ignored import as_files
from triggerer.dag_processing.own_thread import OwnThread
from triggerer.dag_processing.parser_process import ParserSettings
from triggerer.dag_processing.parsers import Parsers
from triggerer.dag_processing.scanning import Scanned, outdated, scan_again
from triggerer.dag_processing.unreadable import as_broken_files, log_changes
from triggerer.dag_processing.watching import FolderWatch
from triggerer.domain.dag_files.merging import Incumbents, files_with_lost_definitions, merge
from triggerer.domain.dag_files.parsed import ParsedFile, Problem
from triggerer.errors import RowRefused, TransientStoreError
from triggerer.observability.logging_setup import names_if_few
from triggerer.plugins import DagsFolder
from triggerer.plugins.folder import STABLE_AFTER_S
from triggerer.store.dags.sync import Changed, read_incumbents, sync_folder
from triggerer.store.database.transactions import Database
from triggerer.store.database.wakeups.signals import Wakeups
from triggerer.store.streams.opening import Reading
from triggerer.synchronization import AutoResetEvent

_log = structlog.get_logger(__name__)

# How long results are gathered for one write. A write does not wait for all files, because one of them may hang.
_GATHER_S: Final = 0.1
_PATIENCE_AT_START_S: Final = 1.0
# The operating system does not report when a file becomes readable. So while a file is unreadable, the folder is
# scanned after this delay. The delay doubles with each scan, up to the interval of other scans.
_RETRY_S: Final = 5.0


class DagProcessor:
    """Reads DAG files when they change, and stores their definitions. A database has one DAG processor.

    The stored definitions of a file stay in these cases:

    - The file is broken, or its folder is gone or unreadable. An error is shown.
    - The file is missing. The definitions stay for `removal_grace`.
    - The file defines less than before, and so may be half-written. The definitions stay until the file has been
      unchanged for two seconds.

    Args:
        wakeups: Unused, because the transaction that writes a change announces it.
        min_file_process_interval: How often the folder is scanned for changes that the operating system does not
            report, as on network file systems. Only changed files are read.
        pools: The names in `[pools]`. A file whose task uses another pool is broken. None: a task may use any pool.
        file_timeout: If a file takes longer to import, the import is stopped, and the file is shown as broken. Also the
            longest time that a new stream waits until all files have been read.
        removal_grace: A file that is missing for this time counts as deleted. Until then, a deployment may be replacing
            the file.
    """

    def __init__(
        self,
        database: Database,
        wakeups: Wakeups | None = None,
        *,
        dags_folder: Path,
        min_file_process_interval: timedelta = timedelta(seconds=30),
        allowed_modules: tuple[str, ...] = (),
        pools: Collection[str] | None = None,
        file_timeout: timedelta = timedelta(seconds=30),
        removal_grace: timedelta = timedelta(seconds=10),
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._database = database
        self._folder = DagsFolder(dags_folder).root
        self._interval_s = min_file_process_interval.total_seconds()
        self._file_timeout = file_timeout
        self._removal_grace = removal_grace
        self._now = now
        known = None if pools is None else frozenset(pools)
        settings = ParserSettings(self._folder, tuple(allowed_modules), file_timeout, pools=known)
        self._parser = Parsers(settings, self._take)
        self._watch = FolderWatch(self._folder, self._scan_soon, interval_s=self._interval_s)
        self._seen = Scanned({})
        """The files of the folder. If a file or subfolder cannot be read now, it counts as at an earlier scan."""
        self._parsed: dict[str, ParsedFile] = {}
        self._reread: set[str] = set()
        """The files that were read after the last write."""
        self._patience_s = self._interval_s
        """The time until the next scan while a part of the folder cannot be read."""
        self._is_dirty = False
        """True if some result is not stored yet."""
        self._vanished: dict[str, float] = {}
        """Files that vanished before they were read and stored, and the time until which they may come back."""
        self._gone_at: dict[str, float] = {}
        """Missing files that do not count as deleted yet, and the time when each was first missed."""
        self._changing: dict[str, float] = {}
        """Files that have just changed, and files that import these; with the time until which a file may be
        half-written."""
        self._withheld: set[str] = set()
        """The changing files that define less than before. The store keeps their former definitions."""
        self._writing: frozenset[str] = frozenset()
        self._writing_reread: frozenset[str] = frozenset()
        self._written: frozenset[str] = frozenset()
        """The files whose definitions are in the store."""
        self._is_scanning = False
        self._has_stored = False
        self._is_full_read_awaited = False
        """True if new streams, or a restored database, wait until all files that were seen have been read."""
        self._due = math.inf
        """When to write without a new result, because a missing file will count as deleted then."""
        self._away: frozenset[str] = frozenset()
        self._hint = AutoResetEvent()
        self._write_requested = AutoResetEvent()
        self._thread = OwnThread()

    @property
    def parser_pid(self) -> int | None:
        """The process id of the parser, while there is one."""
        return self._parser.pid

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Process files until cancelled.

        The start is complete after the first write to the store. This write waits up to a second
        for all files to be read.

        Cancellation: The parser ends. A write under way is completed, or not made at all.
        """
        async with anyio.create_task_group() as tasks:
            await tasks.start(self._parser.run)
            # `checkpoint` lets the watch start before the first scan. Otherwise changes after the scan could be missed.
            tasks.start_soon(self._watch.run)
            await checkpoint()
            # Write even if no file has changed, because files may have been deleted while no service ran.
            self._is_dirty = True
            await self._scan()
            tasks.start_soon(self._scan_when_hinted)
            await self._gather(_PATIENCE_AT_START_S)
            await self._store()
            task_status.started()
            while True:
                await self._gather(_GATHER_S)
                await self._store()

    def _take(self, parsed: ParsedFile) -> None:
        if parsed.path in self._seen.files and not self._seen.hides(parsed.path):
            self._parsed[parsed.path] = parsed
            self._reread.add(parsed.path)
            self._request_write()
            if parsed.is_broken:
                # The file may have vanished before it was read. The next scan shows that.
                self._scan_soon()
        self._request_write_if_all_read()

    def _scan_soon(self) -> None:
        self._hint.set()

    def _request_write(self) -> None:
        self._is_dirty = True
        self._write_requested.set()

    @property
    def _is_reading(self) -> bool:
        """True if some file may not have been read in its current version."""
        now = anyio.current_time()
        return (
            not self._parser.is_idle
            or self._hint.is_set
            or self._is_scanning
            or bool(self._withheld)
            or any(until > now for until in self._vanished.values())
        )

    def _request_write_if_all_read(self) -> None:
        """Write the definitions once no file is being read. New streams wait for that write."""
        if self._is_full_read_awaited and not self._is_reading:
            self._request_write()

    async def _scan(self) -> None:
        before = self._seen
        started = anyio.current_time()
        self._is_scanning = True
        try:
            self._seen = await self._thread.call(scan_again, self._folder, before)
        finally:
            self._is_scanning = False
        log_changes(before.unreadable, self._seen, self._folder)
        if before.unreadable.keys() - self._seen.unreadable.keys():
            self._watch.renew_nowait()
        gone = before.files.keys() - self._seen.files.keys()
        comes_back = anyio.current_time() + self._removal_grace.total_seconds()
        for path in gone:
            self._gone_at[path] = anyio.current_time()
            self._parsed.pop(path, None)
            if path not in self._written:
                self._vanished[path] = comes_back
        for path in self._vanished.keys() & self._seen.files.keys():
            del self._vanished[path]
        for path in self._gone_at.keys() & self._seen.files.keys():
            del self._gone_at[path]
        self._patience_s = min(self._interval_s, 2 * self._patience_s)
        if before.ignored != self._seen.ignored:
            self._request_write()
        if gone or before.unreadable != self._seen.unreadable:
            self._patience_s = min(self._interval_s, _RETRY_S)
            self._request_write()
        paths = outdated(before, self._seen, self._parsed)
        self._record_changes(paths, started)
        if paths:
            self._parser.parse_nowait(sorted(paths))
        self._request_write_if_all_read()

    def _record_changes(self, changed: set[str], scan_started: float) -> None:
        """Remember which files have just changed, and forget files that have been unchanged for `STABLE_AFTER_S`."""
        stable = {path for path, until in self._changing.items() if until <= scan_started}
        for path in stable:
            del self._changing[path]
        # Do not decide by the file's modification time. A file that is just being truncated may have its new size
        # already and still its old modification time. It would seem to be unchanged for long.
        self._changing |= dict.fromkeys(changed, anyio.current_time() + STABLE_AFTER_S)
        if self._withheld - self._changing.keys() - {*self._parser.unanswered}:
            self._request_write()

    async def _scan_when_hinted(self) -> None:
        while True:
            patience_s = self._patience_s if self._seen.unreadable else self._interval_s
            next_scan = anyio.current_time() + patience_s
            with anyio.CancelScope(deadline=min((next_scan, *self._changing.values()))):
                await self._hint.wait()
            self._hint.clear()
            await self._scan()

    async def _gather(self, patience_s: float) -> None:
        """Wait for something to write, and then at most `patience_s` for further results."""
        with anyio.CancelScope(deadline=min((self._due, *self._vanished.values()))):
            while not self._is_dirty:
                await self._write_requested.wait()
        now = anyio.current_time()
        self._vanished = {path: until for path, until in self._vanished.items() if until > now}
        with anyio.move_on_after(patience_s):
            while not self._parser.is_idle:
                await self._write_requested.wait()

    async def _store(self) -> None:
        try:
            # Each write contains the whole state, so a retry is safe even if the first write succeeded.
            changed = await retry(
                self._sync,
                on=TransientStoreError,
                backoff=Backoff(first=0.2, longest=5.0),
                on_failure=log_failure(_log, "DAGs could not be stored; trying again"),
            )
        except RowRefused as error:
            # This should not happen, because the parser refuses definitions that no store accepts. A retry would fail
            # too, so the stored definitions stay in force.
            _log.error("The database refuses what the DAG files define", error=str(error))
            self._due = anyio.current_time() + self._interval_s if self._away else math.inf
        else:
            self._has_stored = True
            self._written = self._writing
            self._reread -= self._writing_reread
            self._is_full_read_awaited = changed.openings.are_closed or changed.is_restoring
            self._request_write_if_all_read()
            self._finish_write(changed)

    async def _sync(self) -> Changed:
        # Results that arrive during this write cause another write.
        self._is_dirty = False
        async with self._database.transaction() as session:
            incumbents = await read_incumbents(session)
            # No await may come between `files` and `reading`, because both must describe one state of the parser.
            # Otherwise `reading` could say that all files have been read although `files` lacks a file.
            files = self._files(incumbents)
            reading = Reading(self._is_reading, not self._has_stored, self._file_timeout)
            self._writing = frozenset(
                path for path, file in files.items() if file is not None and not file.is_broken
            )
            self._writing_reread = frozenset(self._reread)
            known = [file for file in files.values() if file is not None]
            unusable = frozenset(
                path for path, file in files.items() if file is None or file.is_broken
            )
            folder = merge(known, incumbents, unusable=unusable)
            return await sync_folder(
                session,
                folder,
                files,
                now=self._now(),
                removal_grace=self._removal_grace,
                gone_for={
                    path: timedelta(seconds=anyio.current_time() - gone_at)
                    for path, gone_at in self._gone_at.items()
                },
                reading=reading,
                reread=self._writing_reread,
            )

    def _files(self, incumbents: Incumbents) -> dict[str, ParsedFile | None]:
        """Return the folder's parsed files by path. If a value is None, the file's stored definitions stay.

        A value is None if the file cannot be read, is not yet parsed, or defines less than before and is still
        changing.
        """
        seen = self._seen
        # While a file is parsed again, its known definitions come from an older version.
        unstable = {*self._changing, *self._parser.unanswered}
        self._withheld = files_with_lost_definitions(unstable, self._parsed.values(), incumbents)
        known: dict[str, None] = dict.fromkeys(
            path for path in incumbents.files if seen.hides(path)
        )
        parsed = {
            path: None if path in self._withheld else self._parsed.get(path) for path in seen.files
        }
        return {**known, **parsed, **as_broken_files(seen, self._folder), **as_files(seen.ignored)}

    def _finish_write(self, changed: Changed) -> None:
        missing = changed.missing
        self._gone_at = {p: at for p, at in self._gone_at.items() if p in missing.away}
        self._due = math.inf
        if missing.next_in is not None:
            self._due = anyio.current_time() + missing.next_in.total_seconds()
        away = frozenset(missing.away)
        if missed := away - self._away:
            _log.warning(
                "DAG files are missing; what they define stays as it was until they count as deleted",
                files=len(missed),
                **names_if_few(paths=missed),
                removal_grace_s=self._removal_grace.total_seconds(),
            )
        if deleted := missing.deleted & changed.files:
            _log.info("DAG files are deleted", files=len(deleted), **names_if_few(paths=deleted))
        self._away = away
        for problem in sorted(changed.errors, key=_file_and_line):
            _log.error("DAG file", **problem.to_json())
        for problem in sorted(changed.warnings, key=_file_and_line):
            _log.warning("DAG file", **problem.to_json())
        if changed.dag_ids or changed.stream_digests:
            _log.info(
                "DAG files stored",
                dags=len(changed.dag_ids),
                streams=len(changed.stream_digests),
                **names_if_few(dag_ids=changed.dag_ids),
            )


def _file_and_line(problem: Problem) -> tuple[str, int]:
    return problem.file, problem.line or 0
