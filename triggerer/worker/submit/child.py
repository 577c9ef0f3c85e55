"""Runs a command as a child process. Its output goes into the run's log, and the child ends with the task."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from triggerer.errors import RunFailed, SubmitFailed
from triggerer.processes.signals import signal_name
from triggerer.worker.spark.jvm.driver_deaths import reason_in

_GRACE_S: Final = 5.0
"""How long a stopped driver may take to report its end to the cluster. Then the driver is killed."""
_STEP_MS: Final = 500
"""The longest time until a task in a thread notices that it must stop."""
_LAST_LINES: Final = 1000
"""The most lines of output that are remembered. A traceback of Spark Connect's client contains hundreds of lines of the
server's stack, and its first lines are needed.
"""


def run_child(command: Sequence[str], environment: Mapping[str, str], *, what: str) -> None:
    """Run the command to its end. If the call is interrupted, the child is ended, too.

    Args:
        what: The application's name for messages.
    Raises:
        SubmitFailed: The command cannot be started.
        RunFailed: The application failed. The message has the probable reason from its output.
    """
    try:
        child = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    except OSError as error:
        raise SubmitFailed(f"{what} cannot be started: {error}") from error
    last: deque[str] = deque(maxlen=_LAST_LINES)
    copying = threading.Thread(
        target=_copy_output, args=(child, last), name="application-output", daemon=True
    )
    copying.start()
    try:
        code = _wait(child)
    finally:
        _end(child)
    copying.join(_GRACE_S)
    if code != 0:
        how = f"was ended by {signal_name(-code)}" if code < 0 else f"ended with code {code}"
        reason = _reason(list(last))
        raise RunFailed(f"{what} {how}" + (f": {reason}" if reason else ""))


def _wait(child: subprocess.Popen[bytes]) -> int:
    """Wait for the end of the child, and return its exit code.

    A task that runs side by side with others is stopped by an exception in its thread (`worker.parallel.threads`).
    Python raises the exception only after the current call of `poll`, so the calls are short. `Popen.wait` with a time
    limit is no alternative: an exception inside it could leave the lock of `Popen` locked, and `_end` would hang.
    """
    descriptor = os.pidfd_open(child.pid)
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        while not poll.poll(_STEP_MS):
            pass
    finally:
        os.close(descriptor)
    return child.wait()


def _copy_output(child: subprocess.Popen[bytes], last: deque[str]) -> None:
    assert child.stdout is not None
    out = sys.stderr.fileno()
    with child.stdout as lines:
        for line in lines:
            last.append(line.decode(errors="replace").rstrip())
            try:
                os.write(out, line)
            except OSError:
                # The log cannot be written, perhaps because the disk is full. The application continues.
                continue


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is not None:
        return
    child.send_signal(signal.SIGTERM)
    try:
        child.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _reason(lines: list[str]) -> str:
    """Return the exception of the last Python traceback. Without a traceback, return Spark's lines with a reason."""
    starts = [n for n, line in enumerate(lines) if line.startswith("Traceback (most recent call")]
    if starts:
        after = [line for line in lines[starts[-1] + 1 :] if line and not line.startswith(" ")]
        if after:
            return after[0]
    return reason_in([line for line in lines if " INFO " not in line])
