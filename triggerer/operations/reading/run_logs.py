"""Reads the log of a run on this machine, and explains why it cannot be printed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from triggerer.errors import NoLog, TriggererError
from triggerer.worker.logs.hosts import is_log_of
from triggerer.worker.logs.reading import parts_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from triggerer.store.listing.views import RunView


def unreadable(row: RunView, error: OSError) -> TriggererError:
    """Return the error for a log that exists and cannot be read."""
    return TriggererError(f"the log of {row.run_id!r} cannot be read: {error}")


def open_file(row: RunView) -> BinaryIO | None:
    """Open the log of a run; return None if this machine does not have the log of the run's last attempt.

    Raises:
        TriggererError: The log cannot be read.
    """
    if row.log_path is None:
        return None
    try:
        if not is_log_of(row.log_path, row.executor):
            return None
        return Path(row.log_path).open("rb", buffering=0)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(row, error) from error


def read_parts(row: RunView, log: BinaryIO, start: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield the bytes of a run's log from `start` on, each part with its position.

    The middle of a log may have been cut, because the log was too long. The cut part is left out.

    Raises:
        TriggererError: The log cannot be read.
    """
    try:
        yield from parts_of(log, start)
    except OSError as error:
        raise unreadable(row, error) from error


def was_deleted(row: RunView) -> bool:
    """Return whether the run had a log that was deleted because of its age.

    An executor stores the log's path when it claims a run. If the path of an executed run is gone, a cleaning deleted
    the log.
    """
    return row.ended_at is not None and row.executor is not None and row.log_path is None


def no_log(row: RunView) -> NoLog:
    """Return the error for a missing log: the run has not started, or its log is elsewhere or deleted."""
    from triggerer.domain.instants import readable
    from triggerer.domain.runs import RunState
    from triggerer.processes.instance_ids import is_on_this_host

    run = f"the run {row.run_id!r}"
    if row.state == RunState.QUEUED:
        return NoLog(f"{run} is queued: nothing is logged yet", hint="--follow waits for its log")
    # An executor has claimed the run, but no worker has begun the run yet.
    no_worker_yet = NoLog(f"{run} waits for its worker: nothing is logged yet")
    if row.state == RunState.RUNNING and row.started_at is None:
        return no_worker_yet
    if row.ended_at is not None and was_deleted(row):
        return NoLog(
            f"the log of {run} was deleted by age: the run ended at {readable(row.ended_at)}",
            hint="[retention] logs says how long logs stay",
        )
    if row.executor is not None and not is_on_this_host(row.executor):
        may_wait = ", unless the run still waits for its worker" * (row.state == RunState.RUNNING)
        return NoLog(
            f"there is no log of {run} on this machine; its path there is {row.log_path}",
            hint=f"it is on the machine of the executor {row.executor}{may_wait}",
        )
    if row.state == RunState.RUNNING:
        return no_worker_yet
    return NoLog(f"{run} is {row.state} and has no log")
