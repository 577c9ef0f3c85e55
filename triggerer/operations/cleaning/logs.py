"""Deletes logs of runs: together with the runs, or earlier, by the age limit for logs."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
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
from triggerer.store.runs.cleaning import (
    OldRun,
    forget_logs,
    lock_runs_with_old_logs,
    runs_with_old_logs,
)
from triggerer.worker.logs.hosts import is_log_of

_LOGS: Final = 200


@dataclass(frozen=True, slots=True)
class DeletedLogs:
    """The result of `delete_logs`."""

    number: int
    """How many logs were deleted."""
    errors: Mapping[str, TriggererError]
    """Why logs cannot be deleted, by path."""

    @property
    def first_error(self) -> TriggererError | None:
        return next(iter(self.errors.values()), None)


async def clean_logs(database: Database, before: datetime, cleaned: Cleaned, pace: Pace) -> None:
    """Delete this machine's logs of runs that ended before an instant. The runs stay, without a log.

    The executors on other machines delete the logs there. A dry run counts the logs, and deletes nothing.

    Raises:
        TriggererError: A log cannot be deleted. The others are deleted nevertheless.
    """
    failed: TriggererError | None = None
    after = 0
    while True:
        async with database.reading() as session:
            old = await runs_with_old_logs(session, before, after_pk=after, limit=_LOGS)
        if not old:
            break
        after = old[-1].pk
        if cleaned.dry_run:
            cleaned.logs += await to_thread.run_sync(count_logs, paths_of(old).values())
        elif here := await to_thread.run_sync(_on_this_machine, old):
            began = time.monotonic()
            async with database.transaction() as session:
                # Delete the files before the commit: if the commit fails, a later cleaning can repeat it.
                gone = await lock_runs_with_old_logs(session, [run.pk for run in here], before)
                paths = paths_of([run for run in here if run.pk in gone])
                deleted = await to_thread.run_sync(delete_logs, paths.values())
                await forget_logs(session, gone - runs_of(deleted.errors, paths))
            cleaned.logs += deleted.number
            failed = failed or deleted.first_error
            await pace.give_way(began)
        await pace.step()
    if failed is not None:
        raise failed


def _on_this_machine(runs: Sequence[OldRun]) -> list[OldRun]:
    """Return the runs that this machine has executed, and the runs whose logs exist on it."""
    paths = paths_of(runs)
    return [
        run
        for run in runs
        if (run.executor and is_on_this_host(run.executor))
        or (Path(paths[run.pk]).exists() and is_log_of(paths[run.pk], run.executor))
    ]


def paths_of(runs: Sequence[OldRun]) -> dict[int, str]:
    """Return the paths of the logs, by the runs' primary keys. Runs without a log are left out."""
    return {run.pk: log_path(run.log_home, run.dag_id, run.run_id) for run in runs if run.log_home}


def runs_of(chosen: Collection[str], paths: Mapping[int, str]) -> set[int]:
    """Return the primary keys of the runs with the chosen paths. `paths` is a result of `paths_of`."""
    return {pk for pk, path in paths.items() if path in chosen}


def count_logs(paths: Iterable[str]) -> int:
    """Return how many of the logs are on this machine."""
    return sum(map(os.path.exists, paths))


def delete_logs(paths: Iterable[str]) -> DeletedLogs:
    """Delete the logs that are on this machine. If a log cannot be deleted, go on with the next one."""
    number = 0
    errors: dict[str, TriggererError] = {}
    for path in paths:
        try:
            number += _delete_log(path)
        except TriggererError as error:
            errors[path] = error
    return DeletedLogs(number, errors)


def _delete_log(path: str) -> bool:
    """Delete a log. Return False if it is not on this machine.

    Raises:
        TriggererError: The log cannot be deleted.
    """
    try:
        Path(path).unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise TriggererError(
            f"the log {path} cannot be deleted: {error.strerror}",
            hint="repeat the command as the user of the executor",
        ) from error
    return True
