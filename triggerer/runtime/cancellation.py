"""Telling our own cancellation from one that a client library invents."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from triggerer.errors import PluginError


def is_cancelled_by_us() -> bool:
    """Whether a scope of ours, or the task itself, has been asked to stop."""
    if anyio.current_effective_deadline() == -math.inf:
        return True
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


@contextmanager
def plugin_code(what: str) -> Iterator[None]:
    """Turn a cancellation that nobody here asked for into an error that names `what`.

    Without it the task would end in silence: a task group takes a `CancelledError` for a child that was told to stop.
    """
    try:
        yield
    except asyncio.CancelledError as error:
        if is_cancelled_by_us():
            raise
        raise PluginError(
            f"{what} was cancelled, and nobody here asked for it",
            hint="a library inside it cancels its own tasks; catch that in the plugin and raise what it means",
        ) from error
