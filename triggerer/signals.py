"""What SIGINT and SIGTERM do in the course of a command's life. It imports next to nothing: that life begins here.

1. Nothing is open yet that would have to be closed: `leave_when_told` ends the process on the spot.
2. A service runs: `told_to_stop` asks it to stop at the first signal, and ends the process at the second.
3. It has stopped, or failed, and Python winds up: a first signal asks for what happens anyway, a second ends it.

Each handler replaces the one before, so that there is no instant in which a signal does what it would by default. (An
event loop's own handlers, once removed, leave just that behind.)
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, NoReturn

STOPPING: Final = (signal.SIGINT, signal.SIGTERM)
_STANDARD_ERROR: Final = 2


def leave_when_told(exit_code: int, *signums: int) -> None:
    """Have these signals end the process with `exit_code`, without any more of Python.

    An exception would have to make its way through modules that are being imported, and may get lost there: what a
    weak reference's callback raises is printed, and no more.
    """
    for signum in signums:
        signal.signal(signum, _Leave(exit_code))


@contextmanager
def told_to_stop(tell: Callable[[int], None]) -> Iterator[None]:
    """Within the block SIGINT and SIGTERM are told: the first to `tell`, while a second ends the process at once.

    Args:
        tell: Called in the main thread, between any two of its instructions: it may hand the signal over, to an event
            loop for instance, and do little else.
    """
    told = _Told(tell)
    before = [(signum, signal.signal(signum, told)) for signum in STOPPING]
    try:
        yield
    finally:
        told.tell = _ignore
        for signum, handler in before:
            # Leaving now would hide the exit code, and perhaps the error, that the block has ended with.
            if not isinstance(handler, _Leave):
                signal.signal(signum, handler)


class _Leave:
    def __init__(self, exit_code: int) -> None:
        self._exit_code = exit_code

    def __call__(self, signum: int, frame: FrameType | None) -> NoReturn:
        os._exit(self._exit_code)


class _Told:
    def __init__(self, tell: Callable[[int], None]) -> None:
        self.tell = tell
        self._is_told = False

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        if self._is_told:
            _exit_on_the_spot(signum)
        self._is_told = True
        self.tell(signum)


def _ignore(signum: int) -> None:
    pass


def _exit_on_the_spot(signum: int) -> NoReturn:
    try:
        # Not through Python's stream, which may be just what was interrupted.
        if os.isatty(_STANDARD_ERROR):
            os.write(_STANDARD_ERROR, b"\x1b[?25h\n")  # a live display has hidden the cursor
    finally:
        os._exit(128 + signum)
