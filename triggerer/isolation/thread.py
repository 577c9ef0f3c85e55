"""An isolated trigger in its own thread, which has its own event loop."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from contextlib import suppress
from typing import Any

import anyio
import orjson
import structlog

from triggerer.abc import BaseEventTrigger
from triggerer.errors import PluginError
from triggerer.isolation.messages import Close, Command, Report, Terminated
from triggerer.isolation.remote_trigger import RemoteTrigger
from triggerer.isolation.threadsafe_queue import ThreadsafeQueue
from triggerer.isolation.trigger_server import TriggerServer

_log = structlog.get_logger(__name__)


class TriggerThread(RemoteTrigger):
    """Runs a trigger in a thread, for code that waits in blocking calls. No event is copied.

    Code that computes belongs in a process: in a thread, it would compete with the service for the interpreter's lock.
    """

    def __init__(self, name: str, trigger: BaseEventTrigger) -> None:
        super().__init__(name)
        self._trigger = trigger
        self._commands: ThreadsafeQueue[Command] | None = None
        self._loop = asyncio.get_running_loop()
        self._ended = anyio.Event()
        self._is_closing = False
        # The thread is a daemon. A thread cannot be killed, and a thread that is blocked for ever must not keep the
        # process alive.
        self._thread = threading.Thread(target=self._live, name=f"watcher[{name}]", daemon=True)

    @property
    def is_alive(self) -> bool:
        """Whether the thread has not ended yet."""
        return self._thread.is_alive()

    async def open(self) -> None:
        try:
            self._thread.start()
        except RuntimeError as error:
            raise PluginError(f"No thread can be started for {self.name}: {error}") from error
        await self._until_ready()
        _log.info("trigger is isolated", trigger=self.name, placement="thread")

    def send(self, command: Command) -> None:
        if self._commands is not None:
            self._commands.put(command)

    def pack(self, value: Any) -> Any:
        return value

    def size_of(self, packed: Any) -> int:
        return 0

    def unpack(self, packed: Any) -> Any:
        return packed

    async def aclose(self, grace: float) -> None:
        if self._thread.ident is None:
            return
        self._is_closing = True
        self.send(Close())
        with anyio.move_on_after(grace, shield=True):
            await self._ended.wait()
            self._thread.join()
            return
        _log.error(
            "a thread is left behind, blocked",
            trigger=self.name,
            stack=self.stack(),
            hint='isolate the trigger as "process", which can be ended',
        )

    def stack(self) -> str:
        """Return the thread's stack, the innermost call last."""
        frame = sys._current_frames().get(self._thread.ident or 0)  # noqa: SLF001  (documented, for this)
        return "" if frame is None else "".join(traceback.format_stack(frame)[-15:]).rstrip()

    # In the thread

    def _live(self) -> None:
        error: BaseException = PluginError(f"The thread of {self.name} has ended")
        try:
            anyio.run(self._serve)
        except BaseException as raised:  # noqa: BLE001  (the thread ends here: the service gets the error)
            error = PluginError(f"The thread of {self.name} failed: {raised!r}")
            error.__cause__ = raised
        self._put(Terminated(error))
        # The service's loop is closed already if this thread was left behind.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._ended.set)

    async def _serve(self) -> None:
        server = TriggerServer(
            self._trigger,
            self.name,
            report=self._put,
            pack=_same,
            unpack=_same,
            size_of=_size_of_payload,
        )
        self._commands = server.commands
        if self._is_closing:
            # `aclose` was called before this queue existed.
            self._commands.put(Close())
        await server.serve()

    def _put(self, report: Report) -> None:
        self._reports.put(report)


def _same(value: Any) -> Any:
    return value


def _size_of_payload(payload: Any) -> int:
    """Return the size of the payload as JSON. 0: unknown, for instance because a key of a mapping is no string."""
    try:
        return len(orjson.dumps(payload, default=str))
    except TypeError:
        return 0
