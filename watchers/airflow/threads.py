"""A thread for each stream, for the blocking calls that providers make through asgiref's `sync_to_async`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class StreamThread:
    """A thread for the blocking calls of one stream. By default asgiref uses one thread for all streams.

    The thread makes the stream's calls in order, so that a client is closed after its last poll has returned.
    """

    def __init__(self) -> None:
        # Imported here: asgiref comes with Airflow's providers, and this module must be importable without them.
        from asgiref.sync import SyncToAsync, ThreadSensitiveContext

        self._sync_to_async = SyncToAsync
        self._context = ThreadSensitiveContext()

    @contextmanager
    def used(self) -> Iterator[None]:
        """Within the block, in this task, `sync_to_async` uses this stream's thread.

        A generator must not yield inside the block. If another task closed the generator, the end of the block would
        fail there, because only the task that set a context variable can reset it.
        """
        token = self._sync_to_async.thread_sensitive_context.set(self._context)
        try:
            yield
        finally:
            self._sync_to_async.thread_sensitive_context.reset(token)

    def close(self) -> None:
        """Let the thread end after its last call. Do not wait for the end."""
        executor = self._sync_to_async.context_to_thread_executor.pop(self._context, None)
        if executor is not None:
            executor.shutdown(wait=False)
