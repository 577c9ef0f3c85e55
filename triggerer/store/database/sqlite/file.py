"""Notices that a SQLite file was removed or replaced after it was opened.

Without this check, SQLite would continue to write to the removed file, and the commits would be lost without an error.
SQLite's own check (SQLITE_READONLY_DBMOVED) does not work with a write-ahead log, which our databases use. The check in
this module takes two microseconds.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from triggerer.errors import OutcomeUnknown, StoreRefused

_PUT_IT_BACK: Final = "put the file back, or restart the service to use the file that is there now"


def beside(path: Path | str, suffix: str) -> Path:
    """Return the path of a file beside a SQLite file. Links are resolved, so that every process gets the same path."""
    return Path(f"{os.path.realpath(path)}{suffix}")


class SqliteFile:
    """The file that was at `path` when this object was created.

    Raises:
        OSError: There is no such file, or this user has no access to it.
    """

    def __init__(self, path: Path, *, name: str) -> None:
        # A string, because a `Path` would have to be converted in each check.
        self._path = str(path)
        self._name = name
        self._identity = _identity(self._path)

    def check(self) -> None:
        """Check that the file is still in place.

        Raises:
            StoreRefused: The file is gone or was replaced. A new connection would create or use another file.
        """
        try:
            is_same = _identity(self._path) == self._identity
        except OSError as error:
            raise StoreRefused(
                f"{self._name} is gone: {error.strerror}", hint=_PUT_IT_BACK
            ) from error
        if not is_same:
            raise StoreRefused(f"{self._name} was replaced by another file", hint=_PUT_IT_BACK)

    def check_committed(self) -> None:
        """Check that the last commit is in the file.

        Raises:
            OutcomeUnknown: The file was removed or replaced during the transaction.
        """
        try:
            self.check()
        except StoreRefused as error:
            raise OutcomeUnknown(
                f"{error.message}, while it was written", hint=error.hint
            ) from error


def _identity(path: str) -> tuple[int, int]:
    found = os.stat(path)  # noqa: PTH116  (every transaction calls this)
    return found.st_dev, found.st_ino
