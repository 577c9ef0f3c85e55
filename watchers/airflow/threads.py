"""A thread for each stream, for what providers call through asgiref's `sync_to_async`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class StreamThread:
    """One thread: asgiref would have a single one do the blocking calls of all streams, each waiting for the others.

    Calls of one stream stay in order, so that a client is closed after its last poll has returned.
    """

    def __init__(self) -> None:
        # Airflow's providers bring it; the module can be imported without.
        from asgiref.sync import SyncToAsync, ThreadSensitiveContext

        self._sync_to_async = SyncToAsync
        self._context = ThreadSensitiveContext()

    @contextmanager
    def used(self) -> Iterator[None]:
        """Within the block, in this task, `sync_to_async` uses this stream's thread.

        Do not yield from a generator inside the block.
        """
        token = self._sync_to_async.thread_sensitive_context.set(self._context)
        try:
            yield
        finally:
            self._sync_to_async.thread_sensitive_context.reset(token)

    def close(self) -> None:
        """Let the thread go once it has finished what it was given."""
        executor = self._sync_to_async.context_to_thread_executor.pop(self._context, None)
        if executor is not None:
            executor.shutdown(wait=False)
