"""The thread and event loop that the SDK works in; all streams of the process share them.

The SDK renews the locks of messages on the event loop that it works in. On the main event loop, a filter that computes
would delay these renewals (Azure/azure-sdk-for-python#37245). Code that never releases the GIL delays this thread too.
So run a trigger with such code in a separate process (`[triggerer.isolation]`).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

import anyio
from anyio import to_thread

T = TypeVar("T")

_JOIN_TIMEOUT_S = 10.0


class SdkThread:
    """Runs as long as it has users: `acquire` and `release` come in pairs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders = 0
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def acquire(self) -> None:
        """Add a user, and start the thread if it does not run."""
        with self._lock:
            self._holders += 1
            if self._thread is None:
                started = threading.Event()
                self._thread = threading.Thread(
                    target=self._run, args=(started,), name="servicebus", daemon=True
                )
                self._thread.start()
                started.wait()

    async def release(self) -> None:
        """Remove a user; after the last one, stop the thread and wait for its end."""
        with self._lock:
            self._holders -= 1
            if self._holders:
                return
            thread, self._thread = self._thread, None
            loop, self._loop = self._loop, None
        assert thread is not None
        assert loop is not None
        loop.call_soon_threadsafe(loop.stop)
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(thread.join, _JOIN_TIMEOUT_S)

    def _run(self, started: threading.Event) -> None:
        with asyncio.Runner() as runner:
            loop = runner.get_loop()
            # Tasks and transports need the thread's event loop to be set, because no main coroutine runs.
            asyncio.set_event_loop(loop)
            self._loop = loop
            loop.call_soon(started.set)
            loop.run_forever()
            runner.run(_wind_down())

    def start(self, work: Coroutine[Any, Any, T]) -> Work[T]:
        """Run a coroutine in the thread. The thread must have a user until the coroutine ends."""
        assert self._loop is not None
        return Work(self._loop, work)

    def call(self, act: Callable[[], object]) -> None:
        """Call a function in the thread soon, without waiting for it."""
        loop = self._loop
        if loop is not None:
            loop.call_soon_threadsafe(act)


async def _wind_down() -> None:
    """Let the loop finish closing its sockets, which takes a few iterations."""
    for _ in range(10):
        await asyncio.sleep(0)


class Work(Generic[T]):
    """A coroutine that runs in the thread, until it ends or is cancelled.

    Attributes:
        outcome: Done when the coroutine has ended, including its cleanup after a cancellation. The future of
            `asyncio.run_coroutine_threadsafe` would be done before that cleanup.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> None:
        self.outcome: Future[T] = Future()
        self._loop = loop
        self._task: asyncio.Task[T] | None = None
        loop.call_soon_threadsafe(self._begin, work)

    def _begin(self, work: Coroutine[Any, Any, T]) -> None:
        # The task belongs to no task group, but its error is not lost: the owner of this object waits for `outcome`.
        self._task = self._loop.create_task(work)
        self._task.add_done_callback(self._record_end)

    def _record_end(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self.outcome.set_exception(Stopped())
        elif (error := task.exception()) is not None:
            self.outcome.set_exception(error)
        else:
            self.outcome.set_result(task.result())

    def cancel(self) -> None:
        self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def ended(self) -> None:
        """Return when the coroutine has ended, with or without an error.

        Cancellation: The coroutine continues.
        """
        loop = asyncio.get_running_loop()
        has_ended = asyncio.Event()

        def on_done(_: Future[T]) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(has_ended.set)

        self.outcome.add_done_callback(on_done)
        await has_ended.wait()


class Stopped(Exception):
    """The coroutine in the thread was cancelled."""


THREAD = SdkThread()


async def join(work: Work[T]) -> T:
    """Wait, on any loop, for a coroutine that runs in the thread.

    Cancellation: Cancels the coroutine, and waits until it has ended.
    """
    try:
        await work.ended()
    except asyncio.CancelledError:
        work.cancel()
        with anyio.CancelScope(shield=True):
            await work.ended()
        raise
    return work.outcome.result()
