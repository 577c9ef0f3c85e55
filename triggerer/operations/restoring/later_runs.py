"""Finds the logs of runs that executed after a backup of the database was made."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from anyio import to_thread
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.store.runs.logged import LoggedRun, runs_by_log

_SUFFIX: Final = ".log"


@dataclass(frozen=True, slots=True)
class LaterRun:
    """A run that wrote to its log after the backup. The restored database lacks the run, or shows it as unfinished."""

    dag_id: str
    run_id: str
    state: str | None
    """The run's state in the database. None: the database lacks the run, and both ids are taken from the log's path."""
    log_path: str
    log_changed_at: datetime


async def find_later_runs(session: AsyncSession, home: Path, since: datetime) -> list[LaterRun]:
    """Return the runs whose log in `home` was changed at `since` or later, in the order of these changes.

    Runs that have ended according to the database are left out.
    """
    changed = await to_thread.run_sync(lambda: dict(_changed_logs(home / "logs", since)))
    known = await runs_by_log(session, changed.keys())
    found = [_later_run(home, name, at, known.get(name)) for name, at in changed.items()]
    return sorted((one for one in found if one is not None), key=lambda one: one.log_changed_at)


def _later_run(home: Path, name: str, at: datetime, known: LoggedRun | None) -> LaterRun | None:
    path = str(home / "logs" / name)
    if known is None:
        dag_id, _, run_id = name.removesuffix(_SUFFIX).partition("/")
        return LaterRun(dag_id, run_id, None, path, at)
    return None if known.is_ended else LaterRun(known.dag_id, known.run_id, known.state, path, at)


def _changed_logs(folder: Path, since: datetime) -> Iterator[tuple[str, datetime]]:
    """Yield the logs that changed since an instant, as `<dag>/<run>.log`, with the time of the last change."""
    for dag in _entries(folder):
        for entry in _entries(folder / dag.name):
            if entry.name.endswith(_SUFFIX):
                try:
                    at = datetime.fromtimestamp(entry.stat().st_mtime, UTC)
                except OSError:
                    continue
                if at >= since:
                    yield f"{dag.name}/{entry.name}", at


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []
