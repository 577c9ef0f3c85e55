"""What SIGINT, SIGTERM and SIGHUP do, from a command's first line to its last. It is small: a command imports it first.

1. Before anything is open that has to be closed, `leave_when_told` has a signal end the process at once.
2. While a service runs, `told_to_stop` asks it to stop at the first signal, and ends the process at the second.
3. After the service has ended and while Python exits, a first signal is ignored, and a second ends the process.

Each handler replaces the one before, so that a signal never meets the default action. (An event loop restores the
default action when its handlers are removed.)
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, NoReturn

STOPPING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The last one when the terminal is closed; who was started by `nohup` goes on."""
_STANDARD_ERROR: Final = 2


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, while no service listens for signals.

    A `KeyboardInterrupt` of exactly that type that leaves code made from a string, as when a module that
    defines a dataclass is being imported, has CPython end by the signal whatever we exit with
    (`run_eval_code_obj` in its pythonrun.c).
    """


def signal_name(signum: int) -> str:
    """Return what people call the signal."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        # One of the real-time signals, most of which have no name.
        return f"signal {signum}"


def leave_when_told(exit_code: int, *signums: int) -> None:
    """Have these signals end the process with `exit_code` at once, without unwinding.

    An exception could get lost in a module that is being imported: one that is raised in the callback of a weak
    reference, for instance, is printed and ignored.
    """
    for signum in filter(_is_heard, signums):
        signal.signal(signum, _Leave(exit_code))


@contextmanager
def told_to_stop(tell: Callable[[int], None]) -> Iterator[None]:
    """Within the block the first of these signals calls `tell`, and a second one ends the process at once.

    Not a second SIGHUP: shell and kernel both send one.

    Args:
        tell: Called in the main thread, between any two of its instructions: it should only pass the signal on, to an
            event loop for instance.
    """
    told = _Told(tell)
    before = [(signum, signal.signal(signum, told)) for signum in filter(_is_heard, STOPPING)]
    try:
        yield
    finally:
        told.tell = _ignore
        for signum, handler in before:
            # `_Leave` would replace the exit code of the block, and hide its error.
            if not isinstance(handler, _Leave):
                signal.signal(signum, handler)


def _is_heard(signum: int) -> bool:
    return signum != signal.SIGHUP or signal.getsignal(signum) is not signal.SIG_IGN


def are_told() -> bool:
    """Whether signals are told to somebody: then none of them raises `KeyboardInterrupt`."""
    return isinstance(signal.getsignal(signal.SIGINT), _Told)


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
        if self._is_told and signum == signal.SIGHUP:
            return
        if self._is_told:
            _exit_on_the_spot(signum)
        self._is_told = True
        self.tell(signum)


def _ignore(signum: int) -> None:
    pass


def _exit_on_the_spot(signum: int) -> NoReturn:
    try:
        # Not through sys.stderr: the signal may have interrupted a write to it.
        if os.isatty(_STANDARD_ERROR):
            os.write(_STANDARD_ERROR, b"\x1b[?25h\n")  # a live display has hidden the cursor
    finally:
        os._exit(128 + signum)
