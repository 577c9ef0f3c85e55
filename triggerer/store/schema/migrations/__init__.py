"""Numbered scripts that bring a database to the schema of this release's models.

`versions/0001_initial.py` creates the tables of release 0.1.0. The file name of a later script shows when the script
runs:

- `NNNN_before_*.py`: before the code is replaced. The previous release still works with the tables.
- `NNNN_after_*.py`: once no process of the previous release is left.

A script's revision is its file name. CONTRIBUTING.md explains how to write a migration.
"""

from __future__ import annotations

import re
from functools import cached_property
from pathlib import Path
from typing import Final

_NAME: Final = re.compile(r"(?P<number>\d{4})_(?:initial|before_\w+|(?P<after>after)_\w+)")


class Migrations:
    """The migrations that a release contains, in the order of their numbers.

    The revisions are read from the names of the files, so that Alembic need not be imported to check a database.
    """

    def __init__(self, folder: Path) -> None:
        self.folder: Final = folder

    @cached_property
    def revisions(self) -> tuple[str, ...]:
        """The revisions of the migrations. They run in this order."""
        return tuple(sorted(path.stem for path in self.folder.glob("[0-9]*.py")))

    @property
    def newest(self) -> str:
        """The revision of the newest migration. It tells how new the release's code is."""
        return self.revisions[-1]

    @property
    def newest_before(self) -> str:
        """The revision of the newest before-migration: the oldest schema with which the release works."""
        return next(one for one in reversed(self.revisions) if not is_after(one))

    def later_than(self, revision: str) -> tuple[str, ...]:
        """Return the revisions of the migrations that a database at this revision lacks."""
        return tuple(one for one in self.revisions if number(one) > number(revision))


def is_revision(revision: str) -> bool:
    """Return whether the text can be the name of a migration, of any release."""
    return _NAME.fullmatch(revision) is not None


def is_after(revision: str) -> bool:
    """Return whether the migration runs after the code is replaced."""
    found = _NAME.fullmatch(revision)
    return found is not None and found["after"] is not None


def number(revision: str) -> int:
    """Return the number of a migration. An empty or strange text counts as older than every migration."""
    found = _NAME.fullmatch(revision)
    return int(found["number"]) if found else 0


THIS_RELEASE: Final = Migrations(Path(__file__).parent / "versions")
"""The migrations of the release that runs."""
