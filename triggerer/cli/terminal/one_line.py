"""One line of an error, for tables; `show` and `--json` have all of it."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Final

_LEAD: Final = re.compile(r"(?:task .+? failed|\S+ could not be loaded): ")
"""What a run's error says before an exception, see `triggerer.worker.attempt`."""
_NEXT_FAILURE: Final = re.compile(r"\n\n(?=task .+ failed: )")
_CHAINED: Final = re.compile(
    r"^(?:The above exception was the direct cause of the following exception"
    r"|During handling of the above exception, another exception occurred):$",
    re.MULTILINE,
)
_EXCEPTION: Final = re.compile(r"[\w.]+(?:: |$)", re.MULTILINE)
"""An exception of which no frame is shown: none was in the DAGs folder."""
_HEADER: Final = "Traceback (most recent call last):"
_GROUP: Final = ("+ ", "| ")
_GROUP_MARGIN: Final = re.compile(r" *[|+] ")
_CUT: Final = "… "
"""How the line begins that stands for the middle of a very long text."""


def one_line(error: str | None) -> str | None:
    """Return what happened: a traceback's exception, with what is said before it, or the first line; None if empty.

    A run's error has a paragraph for each task that failed: the first is told, and how many more there are.
    """
    first, *others = _NEXT_FAILURE.split((error or "").strip())
    if not first:
        return None
    lead = said.group() if (said := _LEAD.match(first)) else ""
    more = f" (and {len(others)} more)" if others else ""
    return f"{lead}{_happened(first.removeprefix(lead))}{more}"


def _happened(text: str) -> str:
    lines = text.splitlines()
    if not (_HEADER in lines[0] or text.startswith(_GROUP) or _EXCEPTION.match(text)):
        # Told in words; what follows, a worker's last output, may hold tracebacks of whatever it was.
        return lines[0]
    # The last of a chain is what was raised in the end.
    lines = _CHAINED.split(text)[-1].strip().splitlines()
    if lines[0].startswith(_GROUP):
        lines = [_GROUP_MARGIN.sub("", line, count=1) for line in lines]
    if _HEADER not in lines[0]:
        return lines[0]
    # Frames are indented; the exception's own text may have more lines.
    for before, line in pairwise(lines):
        # Behind a cut stands what is left of a line.
        if line[:1].strip() and not line.startswith(_CUT) and not before.startswith(_CUT):
            return line
    return lines[-1].strip()
