"""Finds the known name that is most similar to an unknown name, for suggestions in errors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

CUTOFF: Final = 0.6
"""How similar a name must be to be suggested, from 0 (any name) to 1 (an equal name)."""
_MOST_LISTED: Final = 20


def nearest(name: str, known: Iterable[str], *, cutoff: float = CUTOFF) -> str | None:
    """Return the known name that is most similar to `name`, ignoring case; None if no name is similar enough."""
    # Imported here to save time, because most commands and most DAG files suggest nothing.
    import difflib

    by_folded = {one.casefold(): one for one in known}
    close = difflib.get_close_matches(name.casefold(), list(by_folded), n=1, cutoff=cutoff)
    return by_folded[close[0]] if close else None


def ending(name: str, known: Iterable[str], *, cutoff: float = CUTOFF) -> str:
    """Return the end of a message, `; did you mean 'x'?`; empty if no known name is similar enough."""
    found = nearest(name, known, cutoff=cutoff)
    return "" if found is None else f"; did you mean {found!r}?"


def hint(name: str, known: Iterable[str]) -> str | None:
    """Return `did you mean 'x'?` for the most similar known name. If none is similar enough, list the known names.

    Return None if this list would be empty, or have more than 20 names.
    """
    names = list(known)
    found = nearest(name, names)
    if found is not None:
        return f"did you mean {found!r}?"
    return f"known: {', '.join(sorted(names))}" if 0 < len(names) <= _MOST_LISTED else None
