"""Awaits calls into client libraries. Errors and cancellations that a library raises become errors of this project."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from triggerer.errors import BrokerError, BrokerUnavailable

T = TypeVar("T")

Translate = Callable[[BaseException, str], BrokerError]
"""Returns an error of this project, given a client library's error and a text that says which action failed.

`guarded` raises the returned error `from` the library's error.
"""


def cancelled_from_outside() -> bool:
    """Whether our own code cancelled the running task. Call this after a client library has raised `CancelledError`.

    If False, the library itself raised the error.
    """
    task = asyncio.current_task()
    return anyio.current_effective_deadline() == -math.inf or (
        task is not None and task.cancelling() > 0
    )


async def guarded(
    call: Awaitable[T],
    what: str,
    *,
    translate: Translate,
    catch: tuple[type[BaseException], ...],
) -> T:
    """Await a call into a client library.

    Args:
        what: The action, for the beginning of an error's text: "receive from queue q in eu-central-1".
        catch: The errors to translate, usually the library's base class and `OSError`. A
            `BrokerError`, and any error that is not in `catch`, is raised unchanged.
    Raises:
        BrokerError: The result of `translate`.
        BrokerUnavailable: The library itself raised `CancelledError`. If `guarded` raised this
            `CancelledError`, the caller's task would end without an error, and the stream would
            stop silently.
    Cancellation: If our own code cancelled the task, the cancellation is raised.
    """
    try:
        return await call
    except asyncio.CancelledError as error:
        if cancelled_from_outside():
            # Some libraries (grpc) replace anyio's `CancelledError` with their own, which no cancel scope recognizes.
            # So let anyio raise a new one.
            await anyio.lowlevel.checkpoint_if_cancelled()
            raise
        raise BrokerUnavailable(f"{what}: the client library cancelled itself") from error
    except BrokerError:
        raise
    except catch as error:
        raise translate(error, what) from error
