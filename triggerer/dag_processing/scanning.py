"""Which files the DAGs folder holds, and which of them have to be read again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

from triggerer.domain.parsed import ParsedFile
from triggerer.plugins.folder import Stamp, read_stamp

HERE: Final = "."
"""The DAGs folder itself, among the paths below it."""


@dataclass(frozen=True, slots=True)
class Scanned:
    """What the folder holds, and what of it is out of sight."""

    files: dict[str, Stamp]
    """Every Python file that could be looked at, by relative path and in that order, with what changes
    when it does."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """What is there and cannot be read, with the reason: files and folders by relative path, `.` for the
    DAGs folder itself, also if that is missing."""
    device: int | None = None
    """Which file system the folder lies on; None if it could not be read."""

    def hides(self, path: str) -> bool:
        """Say whether the file may be there, out of sight."""
        if not self.unreadable:
            return False
        above = (str(folder) for folder in PurePosixPath(path).parents)
        return not self.unreadable.keys().isdisjoint((path, *above))


def scan(folder: Path) -> Scanned:
    """Look through the folder; it may change, move or vanish meanwhile. Never raises for what it finds.

    Names that begin with a dot are left out, folders too: among them are the former versions that a
    mounted configuration map keeps.

    A file is gone only if a folder that could be listed does not list it. What is listed and cannot be
    looked at is unreadable, whatever the error: with the folder itself gone, every file would seem so.
    """
    found = _look(folder)
    # What went between being listed and being looked at is told by another look.
    return _look(folder) if found.unreadable else found


def with_hidden(before: Scanned, now: Scanned) -> Scanned:
    """Return what to go by after a look: what is out of sight now stays as it was before."""
    is_elsewhere = None not in (before.device, now.device) and before.device != now.device
    if is_elsewhere and before.files and not now.files:
        # What a file system that is no longer mounted leaves behind is an empty folder.
        now = Scanned({}, {HERE: "it is empty now, and on another file system than before"})
    hidden = {path: stamp for path, stamp in before.files.items() if now.hides(path)}
    device = before.device if now.device is None else now.device
    return Scanned(dict(sorted((hidden | now.files).items())), now.unreadable, device)


def _look(folder: Path) -> Scanned:
    files: dict[str, Stamp] = {}
    unreadable: dict[str, str] = {}
    waiting = [""]
    while waiting:
        below = waiting.pop()
        folders: list[str] = []
        try:
            with os.scandir(folder / below) as entries:
                for entry in entries:
                    if entry.name[0] != ".":
                        _look_at(entry, f"{below}{entry.name}", files, unreadable, folders)
        except OSError as error:
            unreadable[below.rstrip("/") or HERE] = _reason(error)
        else:
            waiting += folders
    device = None if HERE in unreadable else _device(folder)
    return Scanned(dict(sorted(files.items())), dict(sorted(unreadable.items())), device)


def _look_at(
    entry: os.DirEntry[str],
    path: str,
    files: dict[str, Stamp],
    unreadable: dict[str, str],
    folders: list[str],
) -> None:
    """Note what the entry is.

    Raises:
        PermissionError: The folder that holds it may be listed, and what it holds not looked at.
    """
    try:
        if entry.is_dir():
            if entry.name != "__pycache__":
                folders.append(f"{path}/")
        elif entry.name.endswith(".py"):
            files[path] = read_stamp(entry.path)
        elif entry.is_symlink():
            entry.stat()  # one that leads nowhere may have led to a folder
    except OSError as error:
        if isinstance(error, PermissionError) and not entry.is_symlink():
            raise
        unreadable[path] = _reason(error)


def _device(folder: Path) -> int | None:
    try:
        return folder.stat().st_dev
    except OSError:
        return None


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


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
