"""Shortens an error to one line for tables. `show` and `--json` print the whole error."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Final

_LEAD: Final = re.compile(r"(?:task .+? failed|\S+ could not be loaded): ")
"""The text before the exception in a run's error, such as `task load failed: `. `worker.attempt` writes it."""
_NEXT_FAILURE: Final = re.compile(r"\n\n(?=task .+ failed: )")
_CHAINED: Final = re.compile(
    r"^(?:The above exception was the direct cause of the following exception"
    r"|During handling of the above exception, another exception occurred):$",
    re.MULTILINE,
)
_EXCEPTION: Final = re.compile(r"[\w.]+(?:: |$)", re.MULTILINE)
"""The first line of an exception without a traceback, such as `ValueError: no rows`.

A run's error has no traceback if no frame of the stack is in a DAG file.
"""
_HEADER: Final = "Traceback (most recent call last):"
_OURS: Final = re.compile(r"^triggerer\.errors\.\w+: ")
"""Our own errors are sentences for users, so the name of the class adds nothing."""
_GROUP: Final = ("+ ", "| ")
_GROUP_MARGIN: Final = re.compile(r" *[|+] ")
_CUT: Final = "… "
"""The start of the line that replaces the middle of a very long stored error."""


def one_line(error: str | None) -> str | None:
    """Shorten a traceback to its exception, and any other text to its first line; None if there is no text.

    A run's error has one paragraph per failed task. The result describes the first failed task, and
    counts the others, for example `(and 2 more)`.
    """
    first, *others = _NEXT_FAILURE.split((error or "").strip())
    if not first:
        return None
    lead = said.group() if (said := _LEAD.match(first)) else ""
    more = f" (and {len(others)} more)" if others else ""
    return f"{lead}{_OURS.sub('', _exception_line(first.removeprefix(lead)))}{more}"


def _exception_line(text: str) -> str:
    lines = text.splitlines()
    if not (_HEADER in lines[0] or text.startswith(_GROUP) or _EXCEPTION.match(text)):
        # The first line describes the error. Tracebacks below it, if any, are what a worker printed before it died.
        return lines[0]
    # In a chain of exceptions, the last is the one that reached the task's caller.
    lines = _CHAINED.split(text)[-1].strip().splitlines()
    if lines[0].startswith(_GROUP):
        lines = [_GROUP_MARGIN.sub("", line, count=1) for line in lines]
    if _HEADER not in lines[0]:
        return lines[0]
    # Frames are indented, so the first line without an indent names the exception. The last line need not name it,
    # because the exception's text may have several lines.
    for before, line in pairwise(lines):
        # The text may be cut in the middle. Skip the line after the cut: it may be the end of a longer line.
        if line[:1].strip() and not line.startswith(_CUT) and not before.startswith(_CUT):
            return line
    return lines[-1].strip()
