"""What somebody has probably meant who has written a name that is not known."""

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the end of a message that suggests the known name which is most like `name`."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.0)
    return f"; did you mean {close[0]!r}?" if close else ""
