"""Task ids and time limits in the threads of a run that executes its tasks side by side."""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Final

from triggerer.worker.failures import TaskTimeout

logger = logging.getLogger("triggerer.run")

_TURNS: Final = 1_000
"""How many turns of an empty loop a thread runs to receive the exceptions of `raise_in`. Python raises them in one of
the first turns."""
own_task: Final[ContextVar[str | None]] = ContextVar("triggerer_own_task", default=None)
"""The id of the task that this thread executes, if the run executes tasks side by side; None in every other thread."""


def raise_in(thread: threading.Thread, kind: type[BaseException]) -> None:
    """Raise an exception in another thread once that thread executes Python code.

    Do not withdraw the exception afterwards (`PyThreadState_SetAsyncExc` with NULL). After a withdrawal, Python 3.11
    hangs in the next function that a debugger or a coverage tool traces.
    """
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread.ident or 0), ctypes.py_object(kind)
    )


@contextmanager
def thread_time_limit(limit: timedelta | None, on_expiry: Callable[[], None]) -> Iterator[None]:
    """Raise `TaskTimeout` in this thread when the time is up, as `time_limit` does in the main thread.

    Args:
        on_expiry: Called in another thread. It ends calls outside Python, such as Spark jobs, because Python raises the
            exception only after such a call.
    """
    if limit is None:
        yield
        return
    thread, lock = threading.current_thread(), threading.Lock()
    is_over = has_expired = False

    def expire() -> None:
        nonlocal has_expired
        with lock:
            if is_over:
                return
            raise_in(thread, TaskTimeout)
            has_expired = True
        try:
            on_expiry()
        except Exception:
            logger.exception("the work of a task that is over its timeout could not be stopped")

    timer = threading.Timer(limit.total_seconds(), expire)
    timer.daemon = True
    timer.start()
    try:
        try:
            yield
        finally:
            timer.cancel()
            with lock:
                is_over = True
            if has_expired:
                _receive_exceptions()
    except TaskTimeout as timeout:
        timeout.args = timeout.args or (f"the task did not end within {limit}",)
        raise


def _receive_exceptions() -> None:
    """Wait for an exception that `raise_in` has sent to this thread, so that it is not raised in later code."""
    for _ in range(_TURNS):
        pass
