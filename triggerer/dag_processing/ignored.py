"""Reports files of the DAGs folder that look like DAG files but are not loaded, such as notebooks."""

from __future__ import annotations

import functools
import os
import zipfile
from collections.abc import Mapping
from typing import Final

from triggerer.domain.dag_files.parsed import ParsedFile, Problem

_REASONS: Final = {
    ".zip": "zip archives are not loaded (unpack it into the DAGs folder)",
    ".ipynb": "notebooks are not loaded (put its DAGs into a file that ends with .py)",
    ".pyc": "compiled files are not loaded (put the source, which ends with .py, into the DAGs folder)",
    ".pyw": "only files that end with .py are loaded (rename it)",
    ".py": "only files that end with .py, in small letters, are loaded (rename it)",
}


def why_ignored(entry: os.DirEntry[str]) -> str | None:
    """Return why a file that looks like a DAG file is not loaded. None: it is loaded, or is another kind of file.

    Raises:
        OSError: A zip archive cannot be read.
    """
    name = entry.name
    ending = name[name.rfind(".") :].lower() if "." in name else ""
    if name.endswith(".py") or ending not in _REASONS:
        return None
    if ending == ".zip" and not _holds_python(entry.path, entry.stat().st_mtime_ns):
        return None
    return _REASONS[ending]


@functools.lru_cache(maxsize=1_000)
def _holds_python(path: str, modified_ns: int) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith(".py") for name in archive.namelist())
    except zipfile.BadZipFile:
        # The file is no archive, or is still being written. A later change triggers another check.
        return False


def problems_of_ignored(ignored: Mapping[str, str]) -> tuple[Problem, ...]:
    """Return a warning for each ignored file, in the order of `ignored`."""
    return tuple(Problem(path, None, f"it is ignored: {why}") for path, why in ignored.items())


def as_files(ignored: Mapping[str, str]) -> dict[str, ParsedFile]:
    """Return each ignored file as a parsed file with a warning and no definitions, so that lists include it."""
    return {
        problem.file: ParsedFile(path=problem.file, parse_seconds=0.0, warnings=(problem,))
        for problem in problems_of_ignored(ignored)
    }
