"""Finds the modules that were imported after a certain moment, without touching older modules.

A run's process is forked, and shares its memory with the parent until it writes. Even reading a Python object writes
the object's reference count. Half of the page faults of a run's process came from reading all modules.
"""

from __future__ import annotations

import itertools
import sys


class ImportedSince:
    """Finds the modules that were imported after this object was created.

    It does not find a module that took the place of an older module in `sys.modules` under the same name, because a
    dict keeps the position of a replaced entry.
    """

    def __init__(self) -> None:
        self._last = next(reversed(sys.modules))

    def names(self) -> list[str]:
        """Return the names of the modules that were imported after this object was made, oldest first."""
        # This expression runs in C without releasing the interpreter's lock, so no thread imports a module meanwhile.
        found = list(itertools.takewhile(self._last.__ne__, reversed(sys.modules)))
        found.reverse()
        return found
