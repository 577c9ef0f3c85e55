"""The line of a user's file that created an object, for messages that name both sides of a conflict."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Final, NamedTuple

_OWN_ROOT: Final = __file__.rpartition("/domain/")[0] + "/"


class SourceLocation(NamedTuple):
    """A line of a file."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def calling_location() -> SourceLocation | None:
    """Return the innermost line outside this package that led to the call."""
    # inspect.stack() would read source files, which is slow.
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_OWN_ROOT):
            return SourceLocation(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return None


def importing_location() -> SourceLocation | None:
    """Return the line in the innermost module whose top-level code is being executed, or None if there is none.

    If a factory function makes a DAG, the line is in the file that calls the function. If an imported file makes a DAG,
    the line is in the imported file.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
    while frame is not None:
        # Skip "<string>" and similar names, which come from exec() inside a module that has a file.
        code = frame.f_code
        if code.co_name == "<module>" and not code.co_filename.startswith("<"):
            return SourceLocation(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return None
