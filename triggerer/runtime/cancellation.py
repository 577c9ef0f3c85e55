"""What plugin code may not do to the tasks that run it: end them in silence, or end more than is its own."""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from types import TracebackType

import anyio

from triggerer.errors import PluginError


def is_cancelled_by_us() -> bool:
    """Whether a scope of ours, or the task itself, has been asked to stop.

    A task of a task group is asked by scopes alone. `Task.cancel()` on it is plugin code's, perhaps long ago: many a
    library does so for its own timeouts and leaves the request standing (`Task.cancelling()`).
    """
    if anyio.current_effective_deadline() == -math.inf:
        return True
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0 and not _is_in_a_task_group()


def _is_in_a_task_group() -> bool:
    return anyio.get_current_task().parent_id is not None


async def take_back_stray_cancellations() -> None:
    """Undo what plugin code that has ended asked of the current task with `Task.cancel()`.

    What is on its way would strike code of ours that runs next; what was left standing would keep our scopes from
    taking their own cancellations for theirs, and the task from ending in order.
    """
    task = asyncio.current_task()
    if task is None or not task.cancelling() or not _is_in_a_task_group():
        return
    # Not raised again, since nobody here asked for it. What our scopes ask for is asked again at the next wait.
    with anyio.CancelScope(shield=True), suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
    while task.cancelling():
        task.uncancel()


class plugin_code:  # noqa: N801  (a context manager; a generator would cost more than many an advance)
    """Turn what would pass for something else than an error of the plugin into a `PluginError` that names `what`.

    A cancellation that nobody here asked for: a task group takes a `CancelledError` for a child that was told to stop,
    and ends in silence. What is no `Exception` (`sys.exit()`, a panic in a native library): it would end the service.
    So would an error without a text, where it is logged.
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
        if error is None or isinstance(error, KeyboardInterrupt):
            return
        if isinstance(error, asyncio.CancelledError):
            if is_cancelled_by_us():
                return
            raise PluginError(
                f"{self._what} was cancelled, and nobody here asked for it",
                hint="a library inside it cancels its own tasks; catch that in the plugin and raise what it means",
            ) from error
        if isinstance(error, GeneratorExit) and not _is_running():
            # Nobody raised it: the coroutine is thrown away together with its event loop.
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
        # The plugin's code once more: a text that is made late, from what is not there.
        return False
    return True


def _is_running() -> bool:
    try:
        return asyncio.current_task() is not None
    except RuntimeError:
        return False
