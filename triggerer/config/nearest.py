"""What somebody has probably meant who has written a name that is not known."""

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.0) -> str:
    """Return the end of a message that suggests the known name which is most like `name`.

    Args:
        cutoff: How like it has to be, from 0 to 1. 0: there is always one.
    """
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f"; did you mean {close[0]!r}?" if close else ""
