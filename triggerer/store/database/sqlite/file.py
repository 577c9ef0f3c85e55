"""Notices that a SQLite file is no longer the one that was opened.

SQLite goes on writing to a file that was removed or replaced: what it commits is then in no file, and no error says so.
(Only without a write-ahead log does it look, see SQLITE_READONLY_DBMOVED.) To look costs two microseconds.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from triggerer.errors import OutcomeUnknown, StoreRefused

_PUT_IT_BACK: Final = "put the file back, or restart the service to have it use what is there now"


def beside(path: Path | str, suffix: str) -> Path:
    """Return the path of what belongs to a SQLite file, for all who use it: also by the name of a link to it."""
    return Path(f"{os.path.realpath(path)}{suffix}")


class SqliteFile:
    """The file at `path`, as it was when this was made.

    Raises:
        OSError: There is none, or it cannot be looked at.
    """

    def __init__(self, path: Path, *, name: str) -> None:
        # A string: `Path` would be made one at each look.
        self._path = str(path)
        self._name = name
        self._identity = _identity(self._path)

    def check(self) -> None:
        """Check that it is still there.

        Raises:
            StoreRefused: It is gone, or another file is in its place. To open it now would make an empty one.
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
        """Check that what was just committed is in it.

        Raises:
            OutcomeUnknown: It was removed or replaced meanwhile.
        """
        try:
            self.check()
        except StoreRefused as error:
            raise OutcomeUnknown(
                f"{error.message}, while it was written", hint=error.hint
            ) from error


def _identity(path: str) -> tuple[int, int]:
    found = os.stat(path)  # noqa: PTH116  (on the way of every transaction)
    return found.st_dev, found.st_ino
