"""The thread in which the SDK works, with an event loop of its own; one for all streams of the process.

A filter that computes on the service's loop would starve the renewal of locks there, as it starves the SDK's own
renewer (Azure/azure-sdk-for-python#37245). Code that holds the interpreter's lock without a pause starves this thread
too; for that there is isolation in a process.
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
    """Lives while somebody holds it: `acquire` and `release` come in pairs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders = 0
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def acquire(self) -> None:
        """Start the thread where it does not run."""
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
        """Stop it when nobody holds it any more, and wait for its end."""
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
            # Tasks, and what reads and writes, find it by this; no main coroutine is run.
            asyncio.set_event_loop(loop)
            self._loop = loop
            loop.call_soon(started.set)
            loop.run_forever()
            runner.run(_wind_down())

    def start(self, work: Coroutine[Any, Any, T]) -> Work[T]:
        """Run a coroutine there; only while it is held."""
        assert self._loop is not None
        return Work(self._loop, work)

    def call(self, act: Callable[[], object]) -> None:
        """Call a function there, soon."""
        loop = self._loop
        if loop is not None:
            loop.call_soon_threadsafe(act)


async def _wind_down() -> None:
    """Let sockets that were closed see it: what closes them is called in the loop's next turns."""
    for _ in range(10):
        await asyncio.sleep(0)


class Work(Generic[T]):
    """A coroutine that runs in the thread, until it ends or is cancelled.

    Attributes:
        outcome: Done when it has ended, its cleaning up included: not when it was cancelled, as the future would be
            that `asyncio.run_coroutine_threadsafe` returns.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> None:
        self.outcome: Future[T] = Future()
        self._loop = loop
        self._task: asyncio.Task[T] | None = None
        loop.call_soon_threadsafe(self._begin, work)

    def _begin(self, work: Coroutine[Any, Any, T]) -> None:
        # Its parent is whoever holds this object, and waits for the outcome.
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
        """Return when it has ended, however.

        Cancellation: It goes on.
        """
        loop = asyncio.get_running_loop()
        has_ended = asyncio.Event()

        def note(_: Future[T]) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(has_ended.set)

        self.outcome.add_done_callback(note)
        await has_ended.wait()


class Stopped(Exception):
    """What runs in the thread was cancelled."""


THREAD = SdkThread()


async def join(work: Work[T]) -> T:
    """Wait, on any loop, for what runs in the thread.

    Cancellation: cancels it there, and waits until it has ended.
    """
    try:
        await work.ended()
    except asyncio.CancelledError:
        work.cancel()
        with anyio.CancelScope(shield=True):
            await work.ended()
        raise
    return work.outcome.result()
