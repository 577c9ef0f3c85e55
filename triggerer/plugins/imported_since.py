"""Tells which modules were imported after a moment, without touching the modules that were there before.

A forked process shares its memory until it writes, and each look at an object writes the object's reference count. A
look at all modules cost a run's process half of its page faults.
"""

from __future__ import annotations

import itertools
import sys


class ImportedSince:
    """The modules that were imported after this object was made.

    `sys.modules` keeps the order of its insertions, so they are the last ones. A module that another one replaced under
    its old name is not among them.
    """

    def __init__(self) -> None:
        self._last = next(reversed(sys.modules))

    def names(self) -> list[str]:
        """Return their names, oldest first."""
        # All in C, so no other thread imports a module meanwhile.
        found = list(itertools.takewhile(self._last.__ne__, reversed(sys.modules)))
        found.reverse()
        return found
