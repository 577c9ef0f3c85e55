"""The `triggerer` command. Exit codes: 0 done, 1 refused or failed, 2 wrong use, 130 interrupted by Ctrl-C.

Importing the commands takes up to a second. `main` installs the signal handlers first, so that SIGTERM and Ctrl-C work
during the import.
"""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys
from collections.abc import Iterator
from io import TextIOWrapper
from types import FrameType
from typing import Final

from triggerer.cli.terminal.gc_pause import gc_paused
from triggerer.errors import TriggererError
from triggerer.processes.signals import STOPPING, Interrupted, exit_on_signals, unwrapped_interrupts

SERVICES: Final = frozenset(
    {"standalone", "triggerer", "scheduler", "dag-processor", "executor", "api"}
)
"""The commands that run until a signal stops them. A stop by a signal is success: exit code 0."""
INTERRUPTED: Final = 130
_UNWRITABLE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ESTALE})
"""The errors of writing to a file on a full or broken disk, or of a file that is too large."""


def main() -> None:
    """Run the command line; does not return."""
    _open_standard_streams()
    # Under `nohup`, and in the background of a script, SIGINT is already ignored. Keep it ignored.
    is_interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    is_service = not SERVICES.isdisjoint(sys.argv[1:2])
    if is_service:
        exit_on_signals(0, *STOPPING)
    elif is_interruptible:
        exit_on_signals(INTERRUPTED, signal.SIGINT)

    with gc_paused():
        from triggerer.cli import app as commands

    if is_interruptible and not is_service:
        # From here on a command may have resources to close, so Ctrl-C raises instead of exiting.
        signal.signal(signal.SIGINT, _interrupt)
    for argument in sys.argv[1:]:
        try:
            argument.encode()
        except UnicodeEncodeError:
            # A terminal can send bytes that are not UTF-8. Neither a database nor JSON can store them.
            commands.print_error(TriggererError(f"the argument {argument!r} is not UTF-8"))
            sys.exit(2)
    try:
        with unwrapped_interrupts():
            commands.app()
    except SystemExit as ended:
        # Click turns a broken pipe into exit code 1. Exit with 0 instead, as after the `BrokenPipeError` below.
        sys.exit(0 if isinstance(ended.__context__, BrokenPipeError) else ended.code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # `triggerer runs list | head`: the reader has read enough.
        sys.exit(0)
    except OSError as error:
        # Explain only a failed write to standard output: the error of any other file has a `filename`.
        if is_service or error.filename is not None or error.errno not in _UNWRITABLE:
            raise
        _print_unwritable(error)
        sys.exit(1)
    except TriggererError as error:
        commands.print_error(error)
        sys.exit(1)
    except BaseExceptionGroup as group:
        expected, others = group.split(TriggererError)
        if expected is None or others is not None:
            raise
        for leaf in dict.fromkeys(_leaves(expected)):
            commands.print_error(leaf)
        sys.exit(1)
    finally:
        _flush_output()
        # Without `freeze`, Python's garbage collection at exit would take a fifth of a command's time.
        gc.freeze()


def _open_standard_streams() -> None:
    """Open the null device for each standard stream that the parent process closed (`>&-`).

    Otherwise the next file that is opened would get the stream's descriptor, and output would go into that file.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # `os.open` returns the lowest free descriptor, which is `number`.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w", closefd=False))  # noqa: SIM115
    if isinstance(sys.stdout, TextIOWrapper):
        # A character that the terminal's encoding lacks is printed as an escape, as Python does on standard error.
        sys.stdout.reconfigure(errors="backslashreplace")


def _flush_output() -> None:
    """Flush standard output. Python would flush it at exit, and print a traceback if the flush fails."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        sys.stdout = None
    except OSError as error:
        _print_unwritable(error)
        sys.exit(1)


def _print_unwritable(error: OSError) -> None:
    from triggerer.cli import app as commands

    # The buffered output is lost. Without this line Python would try to write it again at exit.
    sys.stdout = None
    commands.print_error(TriggererError(f"the output cannot be written: {error.strerror}"))


def _interrupt(_signum: int, _frame: FrameType | None) -> None:
    raise Interrupted


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


if __name__ == "__main__":
    main()
