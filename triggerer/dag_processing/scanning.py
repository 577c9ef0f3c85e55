"""Finds the files of the DAGs folder, and decides which of them must be read again."""

from __future__ import annotations

import mimetypes
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

from triggerer.dag_processing.ignored import why_ignored
from triggerer.domain.dag_files.parsed import ParsedFile
from triggerer.plugins.folder import Stamp, read_stamp

# Every ext4 volume has a folder `lost+found`, which only root can read.
_NEVER_READ: Final = ("__pycache__", "lost+found")
HERE: Final = "."
"""The relative path that stands for the DAGs folder itself."""


@dataclass(frozen=True, slots=True)
class Scanned:
    """The content of the DAGs folder, and the parts that are *out of sight*.

    A part that is out of sight may exist, but cannot be read now.
    """

    files: dict[str, Stamp]
    """The stamp of every Python file whose status could be read, by relative path, in the order of the paths."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Why files and folders cannot be read, by relative path; `.` is the DAGs folder itself, which may be
    missing."""
    devices: dict[str, int] = field(default_factory=dict)
    """The file system of each folder that could be listed, by relative path; `.` is the DAGs folder."""
    ignored: dict[str, str] = field(default_factory=dict)
    """Why files that look like DAG files are not loaded, by relative path."""

    def hides(self, path: str) -> bool:
        """True if the file may exist, but is out of sight."""
        if not self.unreadable:
            return False
        above = (str(folder) for folder in PurePosixPath(path).parents)
        return not self.unreadable.keys().isdisjoint((path, *above))


def scan(folder: Path) -> Scanned:
    """Scan the folder, which may change, move or vanish during the scan. Nothing in the folder raises an error.

    - Names that begin with a dot are left out, because a mounted ConfigMap keeps old versions under such names.
    - A link to a folder that contains the link is not followed.
    - A listed file that does not exist a moment later counts as unreadable, not as gone. Otherwise a folder that
      vanishes during the scan would delete all definitions.
    """
    found = _scan_once(folder)
    # A file that is deleted after it was listed seems unreadable. A second scan shows that it is gone.
    return _scan_once(folder) if found.unreadable else found


def scan_again(folder: Path, before: Scanned) -> Scanned:
    """Scan the folder again. For a part that is out of sight now, return the files that the scan `before` found."""
    return with_hidden(before, scan(folder))


def with_hidden(before: Scanned, now: Scanned) -> Scanned:
    """Return the scan `now`, with the files that the scan `before` found in the parts that are out of sight now."""
    unmounted = {relative for relative in now.devices if _is_unmounted(relative, before, now)}
    reasons = dict.fromkeys(unmounted, "it is empty now, and on another file system than before")
    seen = Scanned(now.files, dict(sorted((now.unreadable | reasons).items())))
    hidden = {path: stamp for path, stamp in before.files.items() if seen.hides(path)}
    devices = {
        relative: device for relative, device in before.devices.items() if seen.hides(relative)
    }
    return Scanned(
        dict(sorted((hidden | now.files).items())),
        seen.unreadable,
        now.devices | devices,
        now.ignored,
    )


def _is_unmounted(relative: str, before: Scanned, now: Scanned) -> bool:
    """True if a file system was unmounted from this folder: it is empty now, and on another file system than before."""
    if before.devices.get(relative, now.devices[relative]) == now.devices[relative]:
        return False
    root = "" if relative == HERE else f"{relative}/"
    had, has = (any(path.startswith(root) for path in one.files) for one in (before, now))
    return had and not has


def _scan_once(folder: Path) -> Scanned:
    files: dict[str, Stamp] = {}
    unreadable: dict[str, str] = {}
    devices: dict[str, int] = {}
    ignored: dict[str, str] = {}
    # Each folder with its ancestors, because a link back to an ancestor would make the scan endless.
    waiting: list[tuple[str, frozenset[tuple[int, int]]]] = [("", frozenset())]
    while waiting:
        relative, ancestors = waiting.pop()
        folders: list[str] = []
        name = relative.rstrip("/") or HERE
        try:
            status = (folder / relative).stat()
            identity = (status.st_dev, status.st_ino)
            if identity in ancestors:
                continue
            with os.scandir(folder / relative) as entries:
                for entry in entries:
                    if entry.name[0] != ".":
                        path = f"{relative}{entry.name}"
                        _classify(entry, path, files, unreadable, folders, ignored)
        except OSError as error:
            unreadable[name] = _reason(error)
        else:
            ancestors |= {identity}
            waiting += [(found, ancestors) for found in folders]
            devices[name] = status.st_dev
    return Scanned(
        dict(sorted(files.items())),
        dict(sorted(unreadable.items())),
        devices,
        dict(sorted(ignored.items())),
    )


def _classify(
    entry: os.DirEntry[str],
    path: str,
    files: dict[str, Stamp],
    unreadable: dict[str, str],
    folders: list[str],
    ignored: dict[str, str],
) -> None:
    """Add the entry to the collection for its kind: folders, DAG files, unreadable or ignored files.

    Raises:
        PermissionError: The folder can be listed, but the status of its entries cannot be read.
    """
    try:
        if (shown := _in_utf_8(path)) != path:
            # Neither the parser's frames nor a database accept such a path.
            if entry.is_dir() or entry.name.endswith(".py"):
                unreadable[shown] = "its name is not UTF-8"
        elif entry.is_dir():
            if entry.name not in _NEVER_READ:
                folders.append(f"{path}/")
        elif entry.name.endswith(".py"):
            files[path] = read_stamp(entry.path)
        elif (why := why_ignored(entry)) is not None:
            ignored[path] = why
        elif entry.is_symlink() and mimetypes.guess_type(entry.name) == (None, None):
            # `stat` raises an error for a broken link, which may have led to a folder of DAG files.
            entry.stat()
    except OSError as error:
        if isinstance(error, PermissionError) and not entry.is_symlink():
            raise
        unreadable[_in_utf_8(path)] = _reason(error)


def _in_utf_8(path: str) -> str:
    """Return the path, with escapes for bytes that are not UTF-8."""
    return path.encode(errors="surrogateescape").decode(errors="backslashreplace")


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def outdated(before: Scanned, now: Scanned, parsed: Mapping[str, ParsedFile]) -> set[str]:
    """Return the files to read: new, changed or visible again, and the files that import one of these.

    After any change, broken files are read again too, because a module that they lack may have appeared. A file that
    is out of sight now (`Scanned.hides`) is never returned.
    """
    old, new = before.files, now.files
    moved = {path for path in old.keys() | new.keys() if old.get(path) != new.get(path)}
    if before.unreadable:
        # A file that is visible again counts as changed. While it was hidden, a file that imports it may have failed.
        moved |= {path for path in new if before.hides(path) and not now.hides(path)}
    if not moved:
        return set()
    touched = {
        path
        for path, file in parsed.items()
        if file.is_broken or not moved.isdisjoint(file.imports)
    }
    return {path for path in (moved | touched) & new.keys() if not now.hides(path)}
