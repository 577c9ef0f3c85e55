"""Supervises the parts: waits for the database at the start, and fails the service if a part returns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final, Protocol, TypeVar

import anyio
import structlog
from anyio.abc import TaskStatus

from triggerer.backoff import warn_seldom
from triggerer.errors import StoreRefused, StoreUnavailable

_log = structlog.get_logger(__name__)

_ASK_AGAIN_S: Final = 0.5
T = TypeVar("T")


class Runs(Protocol):
    """The body of a part, which runs until it is cancelled."""

    async def __call__(self, *, task_status: TaskStatus[None]) -> None: ...


async def retry_while_unavailable(
    ask: Callable[[], Awaitable[T]], patience: timedelta, *, retries_refusals: bool = True
) -> T:
    """Repeat a query until the database answers, because a service and its database may start together.

    Args:
        retries_refusals: True: also wait while the database refuses, for example because a deployment is about to
            create the database's user.
    Raises:
        StoreUnavailable: The last error, after the database did not answer within `patience`. A refusal is raised at
            once if `retries_refusals` is false.
    """
    deadline = anyio.current_time() + patience.total_seconds()
    failures = 0
    while True:
        try:
            return await ask()
        except StoreUnavailable as error:
            is_final = isinstance(error, StoreRefused) and not retries_refusals
            if is_final or anyio.current_time() >= deadline:
                raise
            failures += 1
            warn_seldom(_log, failures, "waiting for the database", error=str(error))
            await anyio.sleep(_ASK_AGAIN_S)


async def unless_it_returns(
    name: str, part: Runs, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    """Run a part, and fail the service if the part returns without having been cancelled."""
    try:
        await part(task_status=task_status)
    except Exception as error:
        _log.error("a part failed; the service stops", part=name, error=str(error))
        raise
    raise RuntimeError(f"the {name} ended though nobody asked it to")


def without_status(run: Callable[[], Awaitable[None]]) -> Runs:
    """Turn a function without `task_status` into a part. The part counts as started before the function is called."""

    async def running(*, task_status: TaskStatus[None]) -> None:
        task_status.started()
        await run()

    return running
