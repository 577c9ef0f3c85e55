"""A thread for calls that may block on a file system."""

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
    """Makes calls in a thread, one at a time.

    The thread does not count towards anyio's limit of threads, which a hanging file system could use up.
    """

    def __init__(self) -> None:
        self._limiter = CapacityLimiter(1)

    async def call(self, function: Callable[..., T], *arguments: object) -> T:
        """Call the function once a thread is available, and return its result.

        The function must not raise RuntimeError: `call` takes that error for a lack of threads, and tries again.

        Cancellation: The call continues, and its result is dropped. The next call uses another thread.
        """

        async def attempt() -> T:
            return await to_thread.run_sync(
                function, *arguments, limiter=self._limiter, abandon_on_cancel=True
            )

        return await retry(
            attempt,
            # Python raises RuntimeError if no further thread can be started.
            on=RuntimeError,
            backoff=Backoff(first=0.5, longest=_LONGEST_WAIT_S),
            on_failure=log_failure(_log, "the DAGs folder cannot be looked at"),
        )
