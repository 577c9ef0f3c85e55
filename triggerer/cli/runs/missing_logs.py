"""Says why the log of a run cannot be printed here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from triggerer.errors import TriggererError

if TYPE_CHECKING:
    from triggerer.store.listing.views import RunView


def unreadable(row: RunView, error: OSError) -> TriggererError:
    """Return the error for a log that is there and cannot be read."""
    return TriggererError(f"the log of {row.run_id!r} cannot be read: {error}")


def no_log(row: RunView) -> TriggererError:
    """Return why a run has no log here: no worker began the run, the log is on another machine, or it is gone."""
    from triggerer.domain.runs import RunState
    from triggerer.processes.instance_ids import is_on_this_host

    run = f"the run {row.run_id!r}"
    if row.state == RunState.QUEUED:
        return TriggererError(
            f"{run} is queued: nothing is logged yet", hint="--follow waits for its log"
        )
    # Claimed and not begun: the executor holds it until one of its workers is free.
    waits = TriggererError(f"{run} waits for its worker: nothing is logged yet")
    if row.state == RunState.RUNNING and row.started_at is None:
        return waits
    if row.executor is not None and not is_on_this_host(row.executor):
        may_wait = ", unless the run still waits for its worker" * (row.state == RunState.RUNNING)
        return TriggererError(
            f"there is no log of {run} on this machine: no file {row.log_path}",
            hint=f"it lies on the machine of the executor {row.executor}{may_wait}",
        )
    if row.state == RunState.RUNNING:
        return waits
    return TriggererError(f"{run} is {row.state} and has no log")
