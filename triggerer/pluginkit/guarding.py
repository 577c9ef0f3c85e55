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
    """Whether code outside the library cancelled the running task.

    If not, the library itself raised the `CancelledError` that the caller caught.
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
        what: The action. The error's text begins with it: "receive from queue q in eu-central-1".
        catch: The errors to translate, usually the library's base class and `OSError`. `BrokerError`s and all other
            errors are raised unchanged.
    Raises:
        BrokerError: The result of `translate`, or `BrokerUnavailable` for a cancellation that the library itself
            raised. Untranslated, the cancellation would end a task group without an error, and the stream would stop
            silently.
    Cancellation: Raised unchanged.
    """
    try:
        return await call
    except asyncio.CancelledError as error:
        if cancelled_from_outside():
            # The task was cancelled, but this `CancelledError` may be an object that the library made (as grpc does).
            # No cancel scope recognizes such an object, so let anyio raise its own.
            await anyio.lowlevel.checkpoint_if_cancelled()
            raise
        raise BrokerUnavailable(f"{what}: the client library cancelled itself") from error
    except BrokerError:
        raise
    except catch as error:
        raise translate(error, what) from error
