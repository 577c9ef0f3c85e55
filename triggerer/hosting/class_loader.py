"""Loads trigger classes in threads, so that importing users' modules does not block the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Final

import anyio
import structlog

from triggerer.abc import BaseEventTrigger
from triggerer.errors import PluginError
from triggerer.synchronization import Notifier

_log = structlog.get_logger(__name__)

_TURN_S: Final = 1.0
"""After this time, the next load begins even if the present load has not ended."""

TriggerLoader = Callable[[str], type[BaseEventTrigger]]
"""Turns a class path into the class; may raise any error of the plugin's module."""

Loaded = type[BaseEventTrigger] | Exception
"""A class, or the error of its load."""

StartLoad = Callable[[Callable[[], Loaded], Callable[[Loaded], None]], None]
"""Calls the first function in any thread. Then it calls the second with the result, on the event loop."""


class ClassLoad:
    """One load of one class path."""

    def __init__(self, classpath: str) -> None:
        self.classpath = classpath
        self._loaded: Loaded | None = None
        self._settled = anyio.Event()

    @property
    def is_settled(self) -> bool:
        """True if the load has ended, or has taken too long."""
        return self._settled.is_set()

    async def wait_until_settled(self) -> None:
        await self._settled.wait()

    def settle(self, loaded: Loaded) -> None:
        """Set the load's result. Only the first call has an effect."""
        if self._loaded is None:
            self._loaded = loaded
            self._settled.set()

    def result(self) -> type[BaseEventTrigger]:
        """Return the class.

        Raises:
            PluginError: The class has not been loaded yet.
            Exception: The error of the load.
        """
        if isinstance(self._loaded, type):
            return self._loaded
        raise self._loaded or PluginError(f"{self.classpath} is being loaded")


class ClassLoader:
    """Loads one class after the other, because importing from the DAGs folder in several threads is not safe.

    But a load that takes longer than `_TURN_S` no longer holds up the next load, so that a blocked module does not stop
    all loads. A load that takes longer than `patience` settles with an error. Its class is not loaded again until the
    load's thread has ended. Call all methods on the event loop's thread.
    """

    def __init__(
        self, load: TriggerLoader, *, patience: timedelta, start: StartLoad | None = None
    ) -> None:
        self._load = load
        self._patience = patience
        self._start = start or _start_in_thread
        self._unended: dict[str, ClassLoad] = {}
        self._queue: deque[ClassLoad] = deque()
        self._current: ClassLoad | None = None
        self._is_starting = False
        self.settled: Final = Notifier()
        """Wakes all waiters when a load has settled."""

    def begin(self, classpath: str) -> ClassLoad:
        """Begin to load a class, even if it was loaded before. If the class is being loaded, return that load."""
        load = self._unended.get(classpath)
        if load is None:
            load = self._unended[classpath] = ClassLoad(classpath)
            self._queue.append(load)
            self._start_next()
        return load

    def _start_next(self) -> None:
        """Start the next load of the queue. If that load ends at once, start the load after it, and so on."""
        if self._is_starting:
            return
        self._is_starting = True
        while self._current is None and self._queue:
            self._current = load = self._queue.popleft()
            self._start_load(load)
        self._is_starting = False

    def _start_load(self, load: ClassLoad) -> None:
        def perform() -> Loaded:
            try:
                return self._load(load.classpath)
            except Exception as error:  # noqa: BLE001  (raised where the trigger is made)
                return error
            except BaseException as error:  # noqa: BLE001  (raised there too, but it must not end the service)
                return PluginError(f"{load.classpath} cannot be loaded: {error!r}")

        try:
            self._start(perform, lambda loaded: self._end(load, loaded))
        except RuntimeError as error:
            # The system could not start a thread. The next restart of the trigger begins another load.
            self._end(load, PluginError(f"{load.classpath} cannot be loaded now: {error}"))
        if not load.is_settled:
            loop = asyncio.get_running_loop()
            loop.call_later(_TURN_S, self._end_turn, load)
            loop.call_later(self._patience.total_seconds(), self._give_up, load)

    def _end_turn(self, load: ClassLoad) -> None:
        if load is self._current:
            self._current = None
            self._start_next()

    def _give_up(self, load: ClassLoad) -> None:
        if load.is_settled:
            return
        seconds = f"{self._patience.total_seconds():g}"
        _log.error("a trigger class takes long to load", classpath=load.classpath, seconds=seconds)
        error = PluginError(
            f"{load.classpath} has been loading for more than {seconds} s",
            hint="find out what its module, or a module that it imports, waits for",
        )
        self._settle(load, error)

    def _end(self, load: ClassLoad, loaded: Loaded) -> None:
        del self._unended[load.classpath]
        self._settle(load, loaded)

    def _settle(self, load: ClassLoad, loaded: Loaded) -> None:
        load.settle(loaded)
        self.settled.notify_all()
        self._end_turn(load)


def _start_in_thread(perform: Callable[[], Loaded], end: Callable[[Loaded], None]) -> None:
    loop = asyncio.get_running_loop()

    def run() -> None:
        loaded = perform()
        # The loop is closed if the service ended before this thread.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(end, loaded)

    # The thread may be blocked for ever. A daemon thread does not keep the process alive.
    threading.Thread(target=run, name="load-trigger-class", daemon=True).start()
