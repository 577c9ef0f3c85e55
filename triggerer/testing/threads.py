"""Waits, in real time, for threads that work for the event loop. While the threads work, the loop looks idle."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from typing import Any

_PATIENCE_S = 2.0
_LOOK_EVERY_S = 0.001


class ThreadWatch:
    """Waits for work in threads started by `asyncio.to_thread`, `run_in_executor` and `anyio.to_thread`.

    Work of more than two seconds is ignored, because it probably waits for something outside the process. The methods
    of uvloop cannot be replaced, so on uvloop only work of `anyio.to_thread` is noticed.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._in_executor: set[asyncio.Future[Any]] = set()
        self._patient: set[object] = set()
        self._original = self._loop.run_in_executor

    def start(self) -> None:
        with suppress(AttributeError):
            self._loop.run_in_executor = self._run_in_executor  # type: ignore[method-assign,assignment]

    def stop(self) -> None:
        with suppress(AttributeError):
            self._loop.run_in_executor = self._original  # type: ignore[method-assign]

    def _run_in_executor(
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future = self._original(executor, func, *args)
        self._in_executor.add(future)
        future.add_done_callback(self._in_executor.discard)
        return future

    def _at_work(self) -> set[object]:
        return {*self._in_executor, *_anyio_workers()}

    async def wait_for_answer(self) -> bool:
        """Return True once a thread has answered; False if no thread works or none answers in two seconds."""
        at_work = self._at_work()
        self._patient &= at_work
        at_work -= self._patient
        deadline = self._loop.time() + _PATIENCE_S
        while at_work:
            await asyncio.sleep(_LOOK_EVERY_S)
            if not at_work <= self._at_work():
                return True
            if self._loop.time() >= deadline:
                self._patient |= at_work
                return False
        return False


def _anyio_workers() -> set[object]:
    """The busy worker threads of anyio, which has no public name for them."""
    try:
        from anyio._backends import _asyncio as backend

        workers: set[object] = set(backend._threadpool_workers.get())  # noqa: SLF001
        return workers - set(backend._threadpool_idle_workers.get())  # noqa: SLF001
    except (ImportError, AttributeError, LookupError):
        return set()
