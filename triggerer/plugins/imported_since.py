"""Finds the modules that were imported after a certain moment, without touching older modules.

A run's process is forked, and shares each page of memory with its parent until a process writes to the page. Python
changes an object's reference count even when it only reads the object. Looking at all modules caused half of the page
faults of a run's process.
"""

from __future__ import annotations

import itertools
import sys


class ImportedSince:
    """Finds the modules that were imported after this object was created.

    The object misses a module that replaces an older module of the same name, because `sys.modules` keeps the older
    entry's position.
    """

    def __init__(self) -> None:
        self._last = next(reversed(sys.modules))

    def names(self) -> list[str]:
        """Return the names of the modules that were imported after this object was made, oldest first."""
        # This expression runs in C without releasing the interpreter's lock, so no thread imports a module meanwhile.
        found = list(itertools.takewhile(self._last.__ne__, reversed(sys.modules)))
        found.reverse()
        return found
