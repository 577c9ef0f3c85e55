"""Handles SIGINT, SIGTERM and SIGHUP during a command. The module is small, because commands import it first.

1. Before the command opens anything that it must close, a signal ends the process at once (`exit_on_signals`).
2. While a service runs, the first signal asks it to stop, and the second ends the process (`handling_stop_signals`).
3. After the service has ended, a signal ends the process only if another signal came before. Otherwise the signal is
   ignored, because Python is about to exit.

Each handler replaces the previous handler, so there is no moment at which a signal has the default action. For this
reason the handlers are not added to an event loop: the loop restores the default action when it removes a handler.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, NoReturn

STOPPING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""SIGHUP comes when the terminal is closed. A process under `nohup` ignores it and continues."""
_STANDARD_ERROR: Final = 2


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, while no service listens for signals.

    The handler raises this subclass because CPython treats a plain `KeyboardInterrupt` specially (`run_eval_code_obj`
    in pythonrun.c). If that exception leaves code compiled from a string, such as code that `dataclass` generates,
    CPython later kills the process with SIGINT. Our exit code would be lost.
    """


@contextmanager
def unwrapped_interrupts() -> Iterator[None]:
    """If the block raises a RuntimeError whose cause is `Interrupted`, raise `Interrupted` instead.

    Python before 3.12 raises this RuntimeError if Ctrl-C interrupts a descriptor's `__set_name__`.
    """
    try:
        yield
    except RuntimeError as error:
        if isinstance(error.__cause__, Interrupted):
            raise error.__cause__ from None
        raise


def signal_name(signum: int) -> str:
    """Return the usual name of the signal."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        # Most real-time signals have no name.
        return f"signal {signum}"


def exit_on_signals(exit_code: int, *signums: int) -> None:
    """Make these signals end the process with `exit_code` at once, without unwinding.

    A signal handler that raises an exception is not enough, because the exception could get lost while modules are
    imported. For instance, Python prints and ignores an exception from the callback of a weak reference.
    """
    for signum in filter(_may_handle, signums):
        signal.signal(signum, _ExitHandler(exit_code))


@contextmanager
def handling_stop_signals(on_stop: Callable[[int], None]) -> Iterator[None]:
    """During the block, the first signal of `STOPPING` calls `on_stop`, and the second ends the process at once.

    A SIGHUP after the first signal is ignored, because the shell and the kernel both send a SIGHUP when a terminal is
    closed.

    Args:
        on_stop: Called in the main thread, between any two of its instructions. It should only pass the signal on, for
            instance to an event loop.
    """
    stop_handler = _StopHandler(on_stop)
    before = [
        (signum, signal.signal(signum, stop_handler)) for signum in filter(_may_handle, STOPPING)
    ]
    try:
        yield
    finally:
        stop_handler.on_stop = _ignore
        for signum, handler in before:
            # Do not restore the handler of `exit_on_signals`: a later signal would then end the process with that
            # handler's exit code, and hide the block's error.
            if not isinstance(handler, _ExitHandler):
                signal.signal(signum, handler)


def _may_handle(signum: int) -> bool:
    return signum != signal.SIGHUP or signal.getsignal(signum) is not signal.SIG_IGN


def are_stop_signals_handled() -> bool:
    """True if a handler of `handling_stop_signals` receives SIGINT, so that Ctrl-C raises no `KeyboardInterrupt`."""
    return isinstance(signal.getsignal(signal.SIGINT), _StopHandler)


class _ExitHandler:
    def __init__(self, exit_code: int) -> None:
        self._exit_code = exit_code

    def __call__(self, signum: int, frame: FrameType | None) -> NoReturn:
        os._exit(self._exit_code)


class _StopHandler:
    def __init__(self, on_stop: Callable[[int], None]) -> None:
        self.on_stop = on_stop
        self._is_stopping = False

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        if self._is_stopping and signum == signal.SIGHUP:
            return
        if self._is_stopping:
            _exit_on_the_spot(signum)
        self._is_stopping = True
        self.on_stop(signum)


def _ignore(signum: int) -> None:
    pass


def _exit_on_the_spot(signum: int) -> NoReturn:
    try:
        # Do not use sys.stderr: the signal may have interrupted a write to it.
        if os.isatty(_STANDARD_ERROR):
            os.write(_STANDARD_ERROR, b"\x1b[?25h\n")  # show the cursor, which a live display hides
    finally:
        os._exit(128 + signum)
