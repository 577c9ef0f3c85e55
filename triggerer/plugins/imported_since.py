"""Finds the modules that were imported after a certain moment, without touching older modules.

A run's process is forked. It shares memory with the parent until one of them writes there. But Python writes an
object's reference count even when it only reads the object. Before this module existed, a run's process read all
modules, which caused half of the process's page faults.
"""

from __future__ import annotations

import itertools
import sys


class ImportedSince:
    """Finds the modules that were imported after this object was created.

    If a module replaces an older module of this name in `sys.modules`, the dict keeps the older entry's position. So
    the object does not find the new module.
    """

    def __init__(self) -> None:
        self._last = next(reversed(sys.modules))

    def names(self) -> list[str]:
        """Return the names of the modules that were imported after this object was made, oldest first."""
        # This expression runs in C without releasing the interpreter's lock, so no thread imports a module meanwhile.
        found = list(itertools.takewhile(self._last.__ne__, reversed(sys.modules)))
        found.reverse()
        return found
