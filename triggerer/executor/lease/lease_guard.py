"""The guard of an executor's lease: a process that dies before the lease is over. All workers die with the guard.

An executor that is stopped (SIGSTOP, a debugger), or whose event loop hangs, can neither extend its lease nor end its
workers. So the kernel must end the workers:

- With each heartbeat the executor sends the guard a time shortly before the end of the lease. The guard sets a timer of
  the kernel to this time. The timer kills the guard, even if the guard is stopped. The timer's clock is
  `CLOCK_BOOTTIME`, which also runs while the machine is suspended.
- The guard has the only writing end of a pipe, the lifeline (`triggerer.processes.lifelines`). Each worker, and each
  group of Spark's Python processes, arms the reading end. When the guard is gone, the kernel kills these groups.

When the channel to the executor ends, the guard exits. The guard is the program `python -I -S lease_guard.py CHANNEL
ENDS_AT`. It imports little, so that it starts in milliseconds. The executor starts, extends and ends the guard with
`triggerer.executor.lease.lease_guard_process`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

ARMED = b"armed"
"""The guard's answer once its timer is set. Any other answer is the reason why the timer cannot be set."""
LONGEST_MESSAGE = 1000
_SIGEV_SIGNAL = 0
_TIMER_ABSTIME = 1
# Before version 2.34, glibc had the timers in a separate library.
_LIBRARIES = (None, "librt.so.1")


class _Sigevent(ctypes.Structure):
    # sigevent(3type): 64 bytes on all 64-bit architectures.
    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signo", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("rest", ctypes.c_char * 48),
    )


class _Itimerspec(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_long) for name in ("interval_s", "interval_ns", "value_s", "value_ns")
    )


class NoTimer(Exception):
    """The kernel or the C library does not provide the guard's timer."""


class LastTimer:
    """Makes the kernel kill this process at a given time.

    Raises:
        NoTimer: The timer cannot be created.
    """

    def __init__(self) -> None:
        self._library = _library()
        self._timer = ctypes.c_void_p()
        event = _Sigevent(signo=signal.SIGKILL, notify=_SIGEV_SIGNAL)
        made = self._library.timer_create(
            time.CLOCK_BOOTTIME, ctypes.byref(event), ctypes.byref(self._timer)
        )
        _check("timer_create", made)

    def set(self, ends_at: float) -> None:
        """Set the time at which the kernel kills this process, instead of the previous time.

        Args:
            ends_at: Seconds of `CLOCK_BOOTTIME`. A past time kills the process at once.
        """
        # At least one nanosecond, because zero would stop the timer.
        seconds, nanoseconds = divmod(max(1, int(ends_at * 1e9)), 1_000_000_000)
        spec = _Itimerspec(value_s=seconds, value_ns=nanoseconds)
        done = self._library.timer_settime(self._timer, _TIMER_ABSTIME, ctypes.byref(spec), None)
        _check("timer_settime", done)


def _library() -> ctypes.CDLL:
    for name in _LIBRARIES:
        try:
            library = ctypes.CDLL(name, use_errno=True)
        except OSError:
            continue
        if hasattr(library, "timer_create") and hasattr(library, "timer_settime"):
            return library
    raise NoTimer("the C library has no timer_create")


def _check(call: str, result: int) -> None:
    if result != 0:
        raise NoTimer(f"{call}: {os.strerror(ctypes.get_errno())}")


def main() -> None:
    """Guard the lease until it is over, or until the executor is gone."""
    channel, ends_at = int(sys.argv[1]), float(sys.argv[2])
    # When the service is stopped, all its processes may receive SIGHUP, SIGINT or SIGTERM. The guard ignores these
    # signals, because it must live until the executor has ended its runs.
    for signum in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)
    try:
        timer = LastTimer()
        timer.set(ends_at)
    except NoTimer as error:
        os.write(channel, str(error).encode()[:LONGEST_MESSAGE])
        sys.exit(1)
    os.write(channel, ARMED)
    while message := os.read(channel, LONGEST_MESSAGE):
        timer.set(float(message))


if __name__ == "__main__":
    main()
