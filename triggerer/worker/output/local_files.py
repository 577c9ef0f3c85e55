"""The file system of this machine, for `drafts`.

This module is sent to Spark Connect servers, so it imports nothing of ours.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_NO_LINKS: Final = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
"""The errors of a file system without hard links, such as some network drives."""


class LocalFiles:
    """The file system of the machine that executes the call."""

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(one.name for one in Path(folder).iterdir())
        except FileNotFoundError:
            return []

    def visible_below(self, folder: str) -> list[str]:
        found = []
        for below, folders, files in os.walk(folder, onerror=_raise):
            folders[:] = [name for name in folders if not is_hidden(name)]
            relative = Path(below).relative_to(folder)
            found += [str(relative / name) for name in files if not is_hidden(name)]
        return sorted(found)

    def read(self, path: str) -> str | None:
        try:
            return Path(path).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def create(self, path: str, text: str, *, by_way_of: str) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(by_way_of).write_text(text, encoding="utf-8")
        try:
            # Unlike a rename, this fails if the file exists.
            Path(path).hardlink_to(by_way_of)
        except FileExistsError:
            return
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # The file system has no hard links. Two tries could both pass the check below and commit. Only the service
            # prevents that: before a commit, each try asks the service whether its attempt is the current one.
            if not Path(path).exists():
                Path(by_way_of).rename(path)

    def move_all(self, moves: Sequence[tuple[str, str]]) -> None:
        for source, target in moves:
            self.move(source, target)

    def move(self, source: str, target: str) -> None:
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        try:
            Path(source).rename(target)
        except FileNotFoundError:
            if os.path.lexists(source):
                raise

    def delete(self, path: str) -> None:
        try:
            if Path(path).is_dir():
                shutil.rmtree(path)
            else:
                Path(path).unlink(missing_ok=True)
        except FileNotFoundError:
            # Another try is deleting the same draft. Delete what is left.
            self.delete(path)


def is_hidden(name: str) -> bool:
    """Return whether Spark's readers ignore a file or folder of this name."""
    # Spark's own rule: the folder of a partition column may begin with an underscore.
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def _raise(error: OSError) -> None:
    raise error
