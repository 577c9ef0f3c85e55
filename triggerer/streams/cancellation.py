"""Keeps plugin code from ending its task without an error, and from ending more than its task."""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from types import TracebackType

import anyio

from triggerer.errors import PluginError
from triggerer.processes import signals


def is_cancelled_by_us() -> bool:
    """Return whether one of our scopes, or the task itself, has been cancelled.

    Only scopes cancel the tasks of a task group. If `Task.cancel()` was called on one, plugin code did it, perhaps long
    ago: some libraries do so for their timeouts and never uncancel the task (`Task.cancelling()` stays above zero).
    """
    if anyio.current_effective_deadline() == -math.inf:
        return True
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0 and not _is_in_a_task_group()


def _is_in_a_task_group() -> bool:
    return anyio.get_current_task().parent_id is not None


async def take_back_stray_cancellations() -> None:
    """Undo the calls of `Task.cancel()` that plugin code, which has ended, made on the current task.

    A pending cancellation would hit our own code. One that was never uncancelled would keep our scopes from recognising
    their own cancellations, and the task from ending in order.
    """
    task = asyncio.current_task()
    if task is None or not task.cancelling() or not _is_in_a_task_group():
        return
    # Do not raise it again, because it is not ours. One of our scopes delivers its cancellation again at the next wait.
    with anyio.CancelScope(shield=True), suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
    while task.cancelling():
        task.uncancel()


def is_interrupt(error: BaseException) -> bool:
    """Return whether the error is Ctrl-C, which ends all. A service handles signals, so there plugin code raised it."""
    return isinstance(error, KeyboardInterrupt) and not signals.are_told()


class plugin_code:  # noqa: N801  (a context manager; a generator would cost more than many an advance)
    """Turn errors of the plugin that nobody would see as such into a `PluginError` that names `what`.

    - A `CancelledError` that is not ours: the task group would take its task for a cancelled one, and continue
      silently.
    - A `BaseException`, such as `sys.exit()` or a panic in a native library: it would end the service.
    - An error whose text cannot be made: it would raise again in the log.
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
                hint="a library inside it cancels its own tasks; catch that in the plugin and raise what it means",
            ) from error
        if isinstance(error, GeneratorExit) and not _is_running():
            # Nobody raised it: the coroutine is collected with its event loop.
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
        # Plugin code again: `__str__` and `__repr__` may raise.
        return False
    return True


def _is_running() -> bool:
    try:
        return asyncio.current_task() is not None
    except RuntimeError:
        return False
