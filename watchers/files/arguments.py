"""Checks of the arguments that the triggers for files have in common."""

from __future__ import annotations

import math
import os
from typing import Any, Final

from triggerer.errors import DagError

_GLOB: Final = frozenset("*?")


def path_argument(value: Any, what: str) -> str:
    """Return a path in its shortest form.

    Raises:
        DagError: The value is no path, or is a pattern.
    """
    if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
        raise DagError(f"{what} must be a path, not {value!r}")
    refuse_pattern(os.fspath(value), what)
    return os.path.normpath(os.fspath(value))


def interval_argument(value: Any) -> float:
    """Return `poke_interval` as a number of seconds.

    Raises:
        DagError: The value is no number above 0.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise DagError(f"poke_interval must be a number of seconds, not {value!r}")
    if not 0 < value < math.inf:
        raise DagError(f"poke_interval must be above 0, not {value!r}")
    return float(value)


def refuse_pattern(value: str | bytes, what: str) -> None:
    """Refuse a value with `*` or `?`, because it is probably a pattern. Brackets are allowed: a name may have them.

    Raises:
        DagError: The value is a pattern.
    """
    text = os.fsdecode(value)
    if not _GLOB.isdisjoint(text):
        raise DagError(
            f"{what} is one name, and {text!r} is a pattern: no file would match it",
            hint="FilePatternTrigger(directory, pattern) fires for each file that matches a pattern",
        )
