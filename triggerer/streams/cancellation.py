"""Turns cancellations and exits that plugin code causes into errors, so that they do not end our tasks."""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from types import TracebackType

import anyio

from triggerer.errors import PluginError
from triggerer.processes import signals


def is_cancelled_by_us() -> bool:
    """Return whether our code, not plugin code, has cancelled the current task.

    Our code cancels a task of a task group only through a scope. A call of `Task.cancel()` comes from plugin code, such
    as a library's timeout without `uncancel()`. In a task outside any task group, `Task.cancel()` counts as our own
    cancellation.
    """
    if anyio.current_effective_deadline() == -math.inf:
        return True
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0 and not _is_in_a_task_group()


def _is_in_a_task_group() -> bool:
    return anyio.get_current_task().parent_id is not None


async def take_back_stray_cancellations() -> None:
    """Undo each `Task.cancel()` that plugin code has called on the current task. Call this after the plugin code.

    Otherwise a pending cancellation would be raised at our next `await`. And while `Task.cancelling()` is above zero,
    anyio's scopes do not recognise their own cancellations.
    """
    task = asyncio.current_task()
    if task is None or not task.cancelling() or not _is_in_a_task_group():
        return
    # The next lines raise the stray cancellation and drop it. If one of our scopes is cancelled too, anyio raises the
    # scope's cancellation again at the next `await`.
    with anyio.CancelScope(shield=True), suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
    while task.cancelling():
        task.uncancel()


def is_interrupt(error: BaseException) -> bool:
    """Return whether the error is Ctrl-C, which must end the program.

    In a service, a signal handler catches Ctrl-C. So a `KeyboardInterrupt` in a service comes from plugin code, and the
    result is False.
    """
    return isinstance(error, KeyboardInterrupt) and not signals.are_stop_signals_handled()


class plugin_code:  # noqa: N801  (a class: a generator as context manager would cost more time than many advances)
    """Turn an error that would not look like the plugin's fault into a `PluginError` that names `what`.

    There are three such errors:

    - A `CancelledError` that no scope of ours caused: the task group would regard the task as cancelled, and continue
      silently.
    - A `BaseException`, such as `sys.exit()` or a panic in a native library: it would end the service.
    - An error whose `__str__` or `__repr__` raises: writing it to the log would raise again.
    """

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None or is_interrupt(error):
            return
        if isinstance(error, asyncio.CancelledError):
            if is_cancelled_by_us():
                return
            raise PluginError(
                f"{self._what} was cancelled, and nobody here asked for it",
                hint="a library in the plugin cancels its own task: catch the CancelledError, and raise an error"
                " that says why",
            ) from error
        if isinstance(error, GeneratorExit) and not _is_running():
            # No code raised this error. Python closes the coroutine, because its event loop is gone.
            return
        if not _can_be_shown(error):
            how = f"raised {type(error).__qualname__}, which cannot be shown"
        elif isinstance(error, Exception):
            return
        elif isinstance(error, SystemExit):
            how = f"called sys.exit({error.code!r})"
        else:
            how = f"raised {error!r}"
        raise PluginError(f"{self._what} {how}") from error


def _can_be_shown(error: BaseException) -> bool:
    try:
        str(error)
        repr(error)
    except Exception:
        # This runs plugin code too: `__str__` and `__repr__` may raise.
        return False
    return True


def _is_running() -> bool:
    try:
        return asyncio.current_task() is not None
    except RuntimeError:
        return False
