"""Finds the modules that were imported after a certain moment, without touching older modules.

A forked process shares a page of memory with its parent until it writes to the page. Each access to an object writes
the object's reference count. So an access to all modules caused half of the page faults of a run's process.
"""

from __future__ import annotations

import itertools
import sys


class ImportedSince:
    """The modules that were imported after this object was made.

    `sys.modules` keeps the order of insertion, so the newer modules come last. A module that replaces an older module
    of the same name takes over the older module's position, so the newer module is not found.
    """

    def __init__(self) -> None:
        self._last = next(reversed(sys.modules))

    def names(self) -> list[str]:
        """Return the names of the modules that were imported after this object was made, oldest first."""
        # This expression runs in C without releasing the interpreter's lock, so no thread imports a module meanwhile.
        found = list(itertools.takewhile(self._last.__ne__, reversed(sys.modules)))
        found.reverse()
        return found
