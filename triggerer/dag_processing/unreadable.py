"""Messages about files and folders that cannot be read, for the log, `dags list` and `check`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import structlog

from triggerer.dag_processing.scanning import HERE, Scanned
from triggerer.domain.dag_files.parsed import ParsedFile, Problem

_log = structlog.get_logger(__name__)

_HINT_HERE: Final = (
    "make sure that it exists and that the service's user can read it, or restart with another folder:"
    " --dags-folder, or dags_folder in [core]"
)
_HINT_BELOW: Final = "let the service's user read it, or remove it"


def problems_of(found: Scanned, folder: Path) -> dict[str, Problem]:
    """Return a problem for each file and folder that could not be read, by relative path."""
    return {path: _problem(path, reason, folder) for path, reason in found.unreadable.items()}


def as_broken_files(found: Scanned, folder: Path) -> dict[str, ParsedFile]:
    """Return each unreadable file and folder as a broken file, so that lists include it."""
    return {
        path: ParsedFile(path=path, parse_seconds=0.0, errors=(problem,), is_broken=True)
        for path, problem in problems_of(found, folder).items()
    }


def log_changes(before: Mapping[str, str], now: Scanned, folder: Path) -> None:
    """Log once when a path becomes unreadable, and once when it can be read again."""
    for path in now.unreadable.keys() - before.keys():
        _log.error(
            "The DAGs folder cannot be read; what it defines stays as it was"
            if path == HERE
            else "A part of the DAGs folder cannot be read; what it defines stays as it was",
            path=str(folder / path),
            reason=now.unreadable[path],
            hint=_hint(path),
        )
    for path in before.keys() - now.unreadable.keys():
        if not now.hides(path):
            _log.info("The DAGs folder can be read again", path=str(folder / path))


def _problem(path: str, reason: str, folder: Path) -> Problem:
    # Show the whole path of the DAGs folder, because its relative path is only a dot.
    shown = str(folder) if path == HERE else path
    return Problem(shown, None, f"it cannot be read: {reason} ({_hint(path)})")


def _hint(path: str) -> str:
    return _HINT_HERE if path == HERE else _HINT_BELOW
