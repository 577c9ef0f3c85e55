"""Deletes logs of runs: together with the runs, or earlier, by the age limit for logs."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from anyio import to_thread

from triggerer.domain.run_logs import log_path
from triggerer.errors import TriggererError
from triggerer.operations.cleaning.cleaned import Cleaned
from triggerer.operations.cleaning.pace import Pace
from triggerer.processes.instance_ids import is_on_this_host
from triggerer.store.database.transactions import Database
from triggerer.store.runs.cleaning import OldRun, forget_logs, runs_with_old_logs
from triggerer.worker.logs.hosts import is_log_of

_LOGS: Final = 200


async def clean_logs(database: Database, before: datetime, cleaned: Cleaned, pace: Pace) -> None:
    """Delete this machine's logs of runs that ended before an instant. The runs stay, without a log.

    The executors on other machines delete the logs there. A dry run counts the logs, and deletes nothing.

    Raises:
        TriggererError: A log cannot be deleted.
    """
    after = 0
    while True:
        async with database.reading() as session:
            old = await runs_with_old_logs(session, before, after_pk=after, limit=_LOGS)
        if not old:
            return
        after = old[-1].pk
        if cleaned.dry_run:
            cleaned.logs += await to_thread.run_sync(count_logs, paths_of(old))
        elif here := await to_thread.run_sync(_on_this_machine, old):
            began = time.monotonic()
            async with database.transaction() as session:
                # Delete the files before the commit: if the commit fails, a later cleaning can repeat it.
                gone = await forget_logs(session, [run.pk for run in here], before)
                paths = paths_of([run for run in here if run.pk in gone])
                cleaned.logs += await to_thread.run_sync(delete_logs, paths)
            await pace.give_way(began)
        await pace.step()


def _on_this_machine(runs: Sequence[OldRun]) -> list[OldRun]:
    """Return the runs that this machine has executed, and the runs whose logs exist on it."""
    return [
        run
        for run, path in zip(runs, paths_of(runs), strict=True)
        if (run.executor and is_on_this_host(run.executor))
        or (Path(path).exists() and is_log_of(path, run.executor))
    ]


def paths_of(runs: Sequence[OldRun]) -> list[str]:
    """Return the paths of the logs. Runs without a log are left out."""
    return [log_path(run.log_home, run.dag_id, run.run_id) for run in runs if run.log_home]


def count_logs(paths: Sequence[str]) -> int:
    """Return how many of the logs are on this machine."""
    return sum(map(os.path.exists, paths))


def delete_logs(paths: Sequence[str]) -> int:
    """Delete the logs that are on this machine; return their number.

    Raises:
        TriggererError: A log cannot be deleted.
    """
    gone = 0
    for path in paths:
        try:
            Path(path).unlink()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise TriggererError(
                f"the log {path} cannot be deleted: {error.strerror}",
                hint="repeat the command as the user of the executor",
            ) from error
        gone += 1
    return gone
