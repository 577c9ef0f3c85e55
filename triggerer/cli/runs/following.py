"""Follows the log of a run until the run has ended."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO, Final

import anyio

from triggerer.cli.runs.choice import find
from triggerer.cli.runs.copies import print_copy
from triggerer.cli.terminal.output import print_note
from triggerer.domain.runs import RunState
from triggerer.errors import NoLog
from triggerer.operations.reading.run_logs import no_log, open_file, read_parts
from triggerer.processes.instance_ids import is_on_this_host

if TYPE_CHECKING:
    from triggerer.store.database.transactions import Database
    from triggerer.store.listing.views import RunView

_LOOK_S: Final = 0.2
"""Seconds between two reads of the log file."""
_ASK_EVERY: Final = 5
"""Number of reads of the log file between two reads of the run's state."""
_SHARED_FOLDER_S: Final = 5.0
"""How long to wait until the log of another machine appears. In a shared folder, a new file may appear late."""


async def follow_log(
    database: Database, dag_id: str, run_id: str | None, out: BinaryIO, *, ship: str = ""
) -> None:
    """Print the log of a run from its beginning and as it grows; return once the run has ended.

    If the run's executor dies and the run is queued again, the next attempt is followed too. Changes of the run's state
    go to standard error.

    Args:
        run_id: The run's id, or None for the newest run of the DAG.
        out: Receives the log byte for byte, because tasks may print any bytes.
        ship: `[logs] ship`. If an ended run has no log on this machine, its copy in the bucket is printed.
    Raises:
        UnknownRun: The DAG has no such run, or the run was deleted.
        TriggererError: The log cannot be read, or another machine has it.
    """
    # Turn the garbage collector on, because following a run may take days. `with_database` has paused the collector,
    # because most commands take only a second.
    gc.enable()
    log = _GrowingLog(out)
    follower = _RunFollower(log, anyio.current_time)
    while True:
        async with database.reading() as session:
            row = await find(session, dag_id, run_id)
        # Follow this run even if the DAG has a newer run at the next query.
        run_id = row.run_id
        try:
            if follower.see(row):
                return
        except NoLog:
            if await print_copy(ship, row, out):
                return
            raise
        for _ in range(_ASK_EVERY):
            await anyio.sleep(_LOOK_S)
            follower.read_on(row)


class _RunFollower:
    """Prints one run's log, and each change of the run's state. `follow_log` calls it at intervals."""

    def __init__(self, log: _GrowingLog, now: Callable[[], float]) -> None:
        self._log = log
        self._now = now
        self._state: str | None = None
        self._missing_since: float | None = None

    def see(self, row: RunView) -> bool:
        """Print what is new in the log, and a change of the run's state. Return whether the run has ended.

        The executor finishes the log before it stores the run's end, so the log of an ended run is complete.
        """
        is_there = self.read_on(row)
        if RunState(row.state).is_final:
            if not is_there:
                raise no_log(row)
            return True
        self._print_state(row)
        if is_there or row.executor is None or is_on_this_host(row.executor):
            self._missing_since = None
        elif row.state == RunState.RUNNING:
            self._missing_since = self._missing_since or self._now()
            if self._now() - self._missing_since >= _SHARED_FOLDER_S:
                raise no_log(row)
        return False

    def read_on(self, row: RunView) -> bool:
        """Print what is new in the log; return whether there is a log."""
        return row.log_path is not None and self._log.copy(row)

    def _print_state(self, row: RunView) -> None:
        """Print each change of the run's state. The first state is printed only if the run is still queued."""
        known, self._state = self._state, row.state
        if row.state != known and (known is not None or row.state == RunState.QUEUED):
            print_note(f"triggerer: the run {row.run_id!r} is {row.state}")


class _GrowingLog:
    """Copies what is new in a log to a stream. The file may not exist yet."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._path: str | None = None
        self._position = 0

    def copy(self, row: RunView) -> bool:
        """Copy the bytes of a run's log that were not copied yet; return whether the file exists.

        If another executor writes the log of the next attempt, the path changes. The new file is copied from its
        beginning.

        Raises:
            TriggererError: The log cannot be read.
            OSError: The stream cannot be written.
        """
        if row.log_path != self._path:
            self._path, self._position = row.log_path, 0
        file = open_file(row)
        if file is None:
            return False
        with file:
            if file.seek(0, 2) < self._position:
                # The file was truncated or replaced.
                self._position = 0
            for position, part in read_parts(row, file, self._position):
                self._print_cut(position - self._position)
                self._out.write(part)
                self._position = position + len(part)
        self._out.flush()
        return True

    def _print_cut(self, size: int) -> None:
        """Print a note that bytes were cut before this process could copy them.

        The log's own line about the cut is not copied, because it stands before `_position`.
        """
        if size and self._position:
            self._out.flush()
            print_note(f"triggerer: {size:,} bytes of the log were cut here, see [logs] max_bytes")
