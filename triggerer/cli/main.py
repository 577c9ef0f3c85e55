"""The `triggerer` command. Exit codes: 0 done, 1 refused or failed, 2 wrong use.

To import the commands, and what they need, takes up to a second. Who is told to stop meanwhile does so as later:
nothing of that is imported before signals are heard.
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
from triggerer.processes.signals import STOPPING, Interrupted, leave_when_told

SERVICES: Final = frozenset({"standalone", "triggerer", "scheduler", "dag-processor", "executor"})
"""The commands that run until they are told to stop, which is success."""
INTERRUPTED: Final = 130
_UNWRITABLE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO})
"""What a full or broken disk answers to what is printed into a file there."""


def main() -> None:
    """Run the command line; does not return."""
    _open_standard_streams()
    # Else nobody is to interrupt us: we were started by `nohup`, or by a script, in the background.
    is_interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    is_service = not SERVICES.isdisjoint(sys.argv[1:2])
    if is_service:
        leave_when_told(0, *STOPPING)
    elif is_interruptible:
        leave_when_told(INTERRUPTED, signal.SIGINT)

    with gc_paused():
        from triggerer.cli import app as commands

    if is_interruptible and not is_service:
        # From here on there is something to be closed.
        signal.signal(signal.SIGINT, _interrupt)
    for argument in sys.argv[1:]:
        try:
            argument.encode()
        except UnicodeEncodeError:
            # What the terminal sent: neither a database nor JSON takes it.
            commands.print_error(TriggererError(f"the argument {argument!r} is not UTF-8"))
            sys.exit(2)
    try:
        commands.app()
    except SystemExit as ended:
        # Click takes it for a failure; see below.
        sys.exit(0 if isinstance(ended.__context__, BrokenPipeError) else ended.code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except RuntimeError as error:
        # Until Python 3.12, a class that is being made says this of what its descriptors raise.
        if not isinstance(error.__cause__, Interrupted):
            raise
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # `triggerer runs list | head`: the reader has what it wants.
        sys.exit(0)
    except OSError as error:
        # A file would be named.
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
        _print_the_rest()
        # Before it ends, Python looks for cycles in all that was ever imported: a fifth of a command's time.
        gc.freeze()


def _open_standard_streams() -> None:
    """Have what was closed by whoever started us (`>&-`) lead nowhere.

    Otherwise the next files to be opened would get these numbers, and what is printed would go there.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w", closefd=False))  # noqa: SIM115
    if isinstance(sys.stdout, TextIOWrapper):
        # As standard error: a name that the terminal's encoding lacks is to be shown in some way.
        sys.stdout.reconfigure(errors="backslashreplace")


def _print_the_rest() -> None:
    """Print what is left. Python would do it when it exits, and print a traceback if it cannot."""
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

    # What it still holds is lost. Python would try once more when it exits.
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
