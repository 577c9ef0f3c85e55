"""Files that match patterns: as a scan sees them, and as filters receive them."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import anyio

from triggerer.pluginkit.texts import text_of


@dataclass(frozen=True, slots=True)
class SeenFile:
    """A regular file of the directory, as one scan saw it."""

    name: str
    inode: int
    size_bytes: int
    modified_ns: int
    is_link: bool
    """True if the name is a symbolic link. Then the inode, the size and the time belong to the link's target."""


@dataclass(frozen=True, slots=True)
class AppearedFile:
    """A file that fires. Filters receive this object."""

    name: str
    """The file's name in the directory, with surrogates for bytes that are not UTF-8."""
    path: Path
    """The path of the file now: in the directory, or in the folder that it was moved to."""
    size_bytes: int
    modified_ns: int
    key: str
    """The unique id of this appearance."""
    patterns: frozenset[str] | None
    """The patterns for which the file is new. None: all patterns."""

    @property
    def idempotency_key(self) -> str:
        """The key of the appearance, equal at each delivery. The key is valid UTF-8 even if the path is not."""
        return f"{text_of(os.fsencode(self.path.parent / self.name))}#{self.key}"


class PatternSighting:
    """A raw event that asks the subscribers for their patterns.

    Each filter adds its own pattern to `patterns`. Then the files that match are delivered.
    """

    __slots__ = ("answered", "patterns")

    def __init__(self) -> None:
        self.patterns: set[str] = set()
        self.answered = anyio.Event()

    def __reduce__(self) -> tuple[object, ...]:
        # Refuse copies: a pattern that is added to a copy would be lost, and no file would fire for it.
        raise TypeError("a filter has to change a PatternSighting in place, so it cannot be copied")


def scan(directory: Path) -> dict[str, SeenFile]:
    """Return the regular files of a directory by name, and the symbolic links to regular files.

    Folders, pipes, devices and broken links are left out, as are files that vanish during the scan.

    Raises:
        OSError: The directory cannot be read.
    """
    found: dict[str, SeenFile] = {}
    with os.scandir(directory) as entries:
        for entry in entries:
            try:
                status = entry.stat()
                is_link = entry.is_symlink()
            except OSError:
                continue
            if stat.S_ISREG(status.st_mode):
                found[entry.name] = seen_file(entry.name, status, is_link=is_link)
    return found


def seen_file(name: str, status: os.stat_result, *, is_link: bool) -> SeenFile:
    """Make a `SeenFile` from the result of `stat`."""
    return SeenFile(name, status.st_ino, status.st_size, status.st_mtime_ns, is_link)


def time_text(ns: int) -> str | None:
    """Return the time of a file in ISO 8601; None if its year is not between 1 and 9999.

    Some file systems store times far outside these years. A file with such a time must fire nevertheless.
    """
    try:
        return datetime.fromtimestamp(ns / 1e9, UTC).isoformat()
    except (OSError, OverflowError, ValueError):
        return None
