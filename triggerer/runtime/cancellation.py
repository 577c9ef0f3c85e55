"""Telling our own cancellation from one that a client library invents."""

from __future__ import annotations

import asyncio
import math
from types import TracebackType

import anyio

from triggerer.errors import PluginError


def is_cancelled_by_us() -> bool:
    """Whether a scope of ours, or the task itself, has been asked to stop."""
    if anyio.current_effective_deadline() == -math.inf:
        return True
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class plugin_code:  # noqa: N801  (a context manager; a generator would cost more than many an advance)
    """Turn a cancellation that nobody here asked for into an error that names `what`.

    Without it the task would end in silence: a task group takes a `CancelledError` for a child that was told to stop.
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
        if isinstance(error, asyncio.CancelledError) and not is_cancelled_by_us():
            raise PluginError(
                f"{self._what} was cancelled, and nobody here asked for it",
                hint="a library inside it cancels its own tasks; catch that in the plugin and raise what it means",
            ) from error
