"""A signal ends a process with the right exit code, whether it comes at the process's first line or at its last."""

import signal
import subprocess
import sys

import pytest

from triggerer.processes.signals import Interrupted, unwrapped_interrupts

_PRELUDE = """
import os, signal, sys
from triggerer.processes.signals import exit_on_signals, handling_stop_signals

def send(signum):
    os.kill(os.getpid(), signum)

told = []
TERM, INT, HUP = signal.SIGTERM, signal.SIGINT, signal.SIGHUP
exit_on_signals(0, INT, TERM, HUP)
"""


def exit_code_of(code: str) -> int:
    command = [sys.executable, "-c", _PRELUDE + code]
    return subprocess.run(command, timeout=30, check=False).returncode


@pytest.mark.parametrize("signum", ["TERM", "INT", "HUP"])
def test_before_anything_is_open_it_leaves_at_once(signum: str) -> None:
    assert exit_code_of(f"send({signum}); sys.exit(3)") == 0


def test_it_leaves_from_where_an_exception_would_get_lost() -> None:
    code = """
import weakref
class Module: pass
module = Module()
gone = weakref.ref(module, lambda _: send(TERM))
del module
sys.exit(3)
"""
    assert exit_code_of(code) == 0


@pytest.mark.parametrize(
    ("first", "second"), [("TERM", "TERM"), ("INT", "TERM"), ("TERM", "INT"), ("HUP", "TERM")]
)
def test_the_first_signal_is_told_and_the_second_ends_it(first: str, second: str) -> None:
    code = f"""
with handling_stop_signals(told.append):
    send({first})
    assert told == [{first}]
    send({second})
sys.exit(3)
"""
    assert exit_code_of(code) == 128 + getattr(signal, f"SIG{second}")


def test_a_terminal_that_is_closed_is_told_once_however_many_say_so() -> None:
    code = """
with handling_stop_signals(told.append):
    send(HUP)
    send(HUP)
    assert told == [HUP]
sys.exit(3)
"""
    assert exit_code_of(code) == 3


def test_a_process_of_nohup_continues_when_the_terminal_is_closed() -> None:
    code = """
signal.signal(HUP, signal.SIG_IGN)
exit_on_signals(0, HUP)
send(HUP)
with handling_stop_signals(told.append):
    send(HUP)
assert told == []
sys.exit(3)
"""
    assert exit_code_of(code) == 3


def test_a_later_signal_does_not_hide_the_exit_code() -> None:
    code = """
try:
    with handling_stop_signals(told.append):
        raise LookupError
except LookupError:
    send(TERM)
assert told == []
sys.exit(3)
"""
    assert exit_code_of(code) == 3


def test_a_second_signal_ends_what_is_still_winding_up() -> None:
    code = """
with handling_stop_signals(told.append):
    send(TERM)
send(TERM)
sys.exit(3)
"""
    assert exit_code_of(code) == 128 + signal.SIGTERM


def test_handlers_of_others_are_back_in_force_afterwards() -> None:
    code = """
signal.signal(INT, signal.default_int_handler)
with handling_stop_signals(told.append):
    send(INT)
assert signal.getsignal(INT) is signal.default_int_handler
sys.exit(3)
"""
    assert exit_code_of(code) == 3


@pytest.mark.parametrize("cause", [Interrupted(), ValueError("another")])
def test_an_interrupt_that_caused_a_runtime_error_is_raised_itself(cause: BaseException) -> None:
    """Python before 3.12 raises such an error if Ctrl-C comes while a class is defined."""
    expected = Interrupted if isinstance(cause, Interrupted) else RuntimeError
    with pytest.raises(expected), unwrapped_interrupts():
        raise RuntimeError("Error calling __set_name__") from cause
