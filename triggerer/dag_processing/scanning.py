"""Which files the DAGs folder holds, and which of them have to be read again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from triggerer.domain.parsed import ParsedFile
from triggerer.plugins.folder import Stamp, stamp_of


def scan(folder: Path) -> dict[str, Stamp]:
    """Return every Python file below the folder, by relative path, with what changes when it does.

    Names that begin with a dot are left out, folders too: among them are the former versions that a
    mounted configuration map keeps. A folder that does not exist is empty.
    """
    found: dict[str, Stamp] = {}
    for root, folders, names in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if name[0] != "." and name != "__pycache__")
        for name in names:
            if name.endswith(".py") and name[0] != ".":
                path = Path(root, name)
                if (stamp := stamp_of(path)) is not None:
                    found[path.relative_to(folder).as_posix()] = stamp
    return dict(sorted(found.items()))


def outdated(
    before: Mapping[str, Stamp], now: Mapping[str, Stamp], parsed: Mapping[str, ParsedFile]
) -> set[str]:
    """Return the files to read: those that are new or changed, and those that import such.

    A broken file is read again at any change: what it lacks may have appeared.
    """
    moved = {path for path in before.keys() | now.keys() if before.get(path) != now.get(path)}
    if not moved:
        return set()
    touched = {
        path
        for path, file in parsed.items()
        if file.is_broken or not moved.isdisjoint(file.imports)
    }
    return (moved | touched) & now.keys()
