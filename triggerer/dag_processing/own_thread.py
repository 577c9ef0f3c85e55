"""Calls what may block on a file system in a thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import structlog
from anyio import CapacityLimiter, to_thread

from triggerer.backoff import Backoff, log_failure, retry

_log = structlog.get_logger(__name__)

_LONGEST_WAIT_S: Final = 5.0
T = TypeVar("T")


class OwnThread:
    """One call at a time, apart from others: a file system that hangs must not use up their threads."""

    def __init__(self) -> None:
        self._limiter = CapacityLimiter(1)

    async def call(self, function: Callable[..., T], *arguments: object) -> T:
        """Return what the function returns, as soon as a thread can be had; it raises no RuntimeError.

        Cancellation: The call goes on, and nobody waits for it.
        """

        async def attempt() -> T:
            return await to_thread.run_sync(
                function, *arguments, limiter=self._limiter, abandon_on_cancel=True
            )

        return await retry(
            attempt,
            # Python's answer where the user, or its container, has as many threads as it may have.
            on=RuntimeError,
            backoff=Backoff(first=0.5, longest=_LONGEST_WAIT_S),
            on_failure=log_failure(_log, "the DAGs folder cannot be looked at"),
        )
