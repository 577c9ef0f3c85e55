"""Awaits calls into client libraries: their errors are translated, and a cancellation that is theirs is one of them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from triggerer.errors import BrokerError, BrokerUnavailable

T = TypeVar("T")

Translate = Callable[[BaseException, str], BrokerError]
"""From a client library's error, and what was being done, to the project's error. It is raised `from` the former."""


def cancelled_from_outside() -> bool:
    """Whether the running task was cancelled by our code; if not, a library itself raised the `CancelledError`."""
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
        what: What is done, and where: "receive from queue q in eu-central-1". It begins the error's message.
        catch: The errors to translate, the library's base class and `OSError` as a rule. `BrokerError`s pass, and so
            does what is not named.
    Raises:
        BrokerError: As `translate` says; `BrokerUnavailable` for a cancellation that the library raises by itself. With
            that, a task group would end without an error, and nobody would notice that the stream has stopped.
    Cancellation: Passes.
    """
    try:
        return await call
    except asyncio.CancelledError as error:
        if cancelled_from_outside():
            # The library may have put one of its own in the place of ours (grpc does), at which no scope would end.
            await anyio.lowlevel.checkpoint_if_cancelled()
            raise
        raise BrokerUnavailable(f"{what}: the client library cancelled itself") from error
    except BrokerError:
        raise
    except catch as error:
        raise translate(error, what) from error
