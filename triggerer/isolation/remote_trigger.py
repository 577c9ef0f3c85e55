"""An isolated trigger as the service sees it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Final

import anyio

from triggerer.errors import PluginError
from triggerer.isolation.messages import (
    Cancel,
    CleanedUp,
    CleanUp,
    Command,
    Finished,
    GeneratorMethod,
    Ready,
    Report,
    Start,
    Terminated,
)
from triggerer.isolation.threadsafe_queue import ThreadsafeQueue


class RemoteTrigger(ABC):
    """One isolated trigger with its thread or process, from `open` to `aclose`. Only one task at a time may use it."""

    def __init__(self, name: str) -> None:
        self.name: Final = name
        self._reports: ThreadsafeQueue[Report] = ThreadsafeQueue()
        self._terminated: Terminated | None = None
        self._is_ready = False
        self._is_running = False

    # The steps that differ between a thread and a process

    @abstractmethod
    async def open(self) -> None:
        """Start the thread or process, and return once it has made the trigger.

        Raises:
            PluginError: The thread or process does not start, or cannot make the trigger.
        Cancellation: The caller must call `aclose`, as after an error.
        """

    @abstractmethod
    def send(self, command: Command) -> None:
        """Send a command without blocking. Does nothing once the thread or process has ended."""

    @abstractmethod
    def pack(self, value: Any) -> Any:
        """Return a raw event in its packed form, to be sent to the trigger.

        Raises:
            PluginError: The event cannot be sent.
        """

    @abstractmethod
    def size_of(self, packed: Any) -> int:
        """Return the size in bytes of a packed raw event; 0 for a thread, to which nothing is copied."""

    @abstractmethod
    def unpack(self, packed: Any) -> Any:
        """Return the payload that the trigger packed.

        Raises:
            PluginError: The payload cannot be read here.
        """

    @abstractmethod
    async def aclose(self, grace: float) -> None:
        """End the thread or process.

        Args:
            grace: After this number of seconds, kill a process that is still busy, or leave a busy thread behind.
        """

    # The steps that a thread and a process share

    def start(self, method: GeneratorMethod) -> None:
        self.send(Start(method))
        self._is_running = True

    async def report(self) -> Report:
        """Wait for the next report.

        Raises:
            Exception: The error that ended the trigger, once all reports were returned.
        """
        if self._terminated is not None:
            raise self._terminated.error
        report = await self._reports.get()
        if isinstance(report, Terminated):
            self._terminated = report
            self._is_running = False
            raise report.error
        if isinstance(report, Finished):
            self._is_running = False
        return report

    @property
    def is_running(self) -> bool:
        """Whether the filter or `run()` was started and has not been reported as finished."""
        return self._is_running

    @property
    def is_idle(self) -> bool:
        """Whether the trigger is ready and runs nothing."""
        return self._is_ready and self._terminated is None and not self._is_running

    async def stop(self, grace: float) -> None:
        """Cancel the filter or `run()`, and wait at most `grace` seconds for its end."""
        if not self._is_running:
            return
        self.send(Cancel())
        with anyio.move_on_after(grace, shield=True):
            try:
                while self._is_running:
                    await self.report()
            except PluginError:
                # The thread or process has ended, and the filter with it.
                return

    async def clean_up(self) -> None:
        """Call the trigger's `cleanup()`.

        Raises:
            Exception: The error of `cleanup()`, or why it could not be called.
        """
        self.send(CleanUp())
        while not isinstance(report := await self.report(), CleanedUp):
            pass
        if report.error is not None:
            raise report.error

    async def _until_ready(self) -> None:
        report = await self.report()
        assert isinstance(report, Ready), report
        self._is_ready = True
