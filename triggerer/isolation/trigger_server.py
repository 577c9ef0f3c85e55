"""The plugin's side of an isolated trigger: runs the trigger's code on the event loop of its thread or process."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from triggerer.abc import BaseEventTrigger, TriggerEvent, current_subscriber
from triggerer.errors import PluginError
from triggerer.isolation.messages import (
    Cancel,
    CleanedUp,
    CleanUp,
    Close,
    Command,
    Credit,
    Derived,
    EndStream,
    Finished,
    GeneratorMethod,
    Opened,
    RawEvents,
    Ready,
    Rejected,
    Report,
    Requested,
    Start,
)
from triggerer.isolation.threadsafe_queue import ThreadsafeQueue
from triggerer.streams.cancellation import plugin_code
from triggerer.synchronization import AutoResetEvent

MOST_IN_TRANSIT: Final = 1024
"""The filter waits while this number of derived events are sent and not yet confirmed by the service (`Credit`)."""
MOST_BYTES_IN_TRANSIT: Final = 8 * 1024 * 1024
"""8 MiB: the limit for unconfirmed events in bytes. The last event may exceed the limit."""

Codec = Callable[[Any], Any]
"""Packs or unpacks a value between service and trigger, or raises `PluginError`."""


class TriggerServer:
    """Executes commands for one trigger, and reports each step of the trigger's code in order.

    This class implements `RejectsOpenEvent`, so that `reject_shared_stream_event` works in the isolated filter.
    """

    def __init__(
        self,
        trigger: BaseEventTrigger,
        name: str,
        *,
        report: Callable[[Report], None],
        unpack: Codec,
        pack: Codec,
        size_of: Callable[[Any], int],
    ) -> None:
        """Make the server; `serve` runs it.

        Args:
            report: Receives the reports. It must accept calls from any thread.
            size_of: Returns the size in bytes of a packed value; 0 if the size is unknown.
        """
        self._trigger = trigger
        self._name = name
        self._report = report
        self._unpack = unpack
        self._pack = pack
        self._size_of = size_of
        self._commands: ThreadsafeQueue[Command] = ThreadsafeQueue()
        self._raw: deque[Any] = deque()
        self._end: EndStream | None = None
        self._arrived = AutoResetEvent()
        self._is_open = False
        self._in_transit: deque[int] = deque()
        """The sizes of the derived events that the service has not confirmed, in order."""
        self._bytes_in_transit = 0
        self._room = AutoResetEvent()
        self._scope = anyio.CancelScope()

    @property
    def commands(self) -> ThreadsafeQueue[Command]:
        return self._commands

    async def serve(self) -> None:
        """Execute commands until `Close`."""
        self._report(Ready())
        async with anyio.create_task_group() as tasks:
            while self._handle(await self._commands.get(), tasks):
                pass
            tasks.cancel_scope.cancel()

    def _handle(self, command: Command, tasks: TaskGroup) -> bool:
        match command:
            case Start(method):
                tasks.start_soon(self._run_generator, method, name=f"watcher[{self._name}]")
            case RawEvents(events):
                self._raw.extend(events)
                self._arrived.set()
            case EndStream():
                # The filter learns of the end at once, and gets no event that was sent ahead.
                self._end = command
                self._raw.clear()
                self._arrived.set()
            case Credit(number):
                for _ in range(number):
                    self._bytes_in_transit -= self._in_transit.popleft()
                self._room.set()
            case Cancel():
                self._scope.cancel()
            case CleanUp():
                tasks.start_soon(self._clean_up, name=f"watcher[{self._name}]")
            case Close():
                return False
        return True

    # The plugin's code

    async def _run_generator(self, method: GeneratorMethod) -> None:
        error: Exception | None = None
        try:
            with self._scope:
                if method is GeneratorMethod.FILTER:
                    current_subscriber.set(self)
                    await self._filter()
                else:
                    await self._run()
        except Exception as raised:  # noqa: BLE001  (the boundary to the plugin: the service shows the error)
            error = raised
        self._report(Finished(error))

    async def _filter(self) -> None:
        stream = self._stream()
        with plugin_code(f"The filter of {self._name}"):
            async with (
                aclosing(stream),
                aclosing(self._generator(GeneratorMethod.FILTER, stream)) as events,
            ):
                async for event in events:
                    await self._derive(event, "The filter")

    async def _run(self) -> None:
        with plugin_code(f"run() of {self._name}"):
            async with aclosing(self._generator(GeneratorMethod.RUN)) as events:
                async for event in events:
                    await self._derive(event, "run()")

    def _generator(
        self, method: GeneratorMethod, *arguments: Any
    ) -> AsyncGenerator[TriggerEvent, None]:
        trigger = self._trigger
        is_filter = method is GeneratorMethod.FILTER
        function = trigger.filter_shared_stream if is_filter else trigger.run
        events = function(*arguments)
        if not isinstance(events, AsyncGenerator):
            raise PluginError(
                f"{type(trigger).__qualname__}.{method.value} returned {type(events).__qualname__}",
                hint="write it as an async generator: `async def` with `yield`",
            )
        return events

    async def _stream(self) -> AsyncGenerator[Any, None]:
        """Yield the raw events. Each request reports that the filter has moved past the previous event."""
        while True:
            self._report(Requested())
            while not self._raw and self._end is None:
                await self._arrived.wait()
            if self._end is not None:
                if self._end.error is not None:
                    raise self._end.error
                return
            raw = self._unpack(self._raw.popleft())
            self._is_open = True
            self._report(Opened())
            yield raw
            self._is_open = False

    async def _derive(self, event: TriggerEvent, what: str) -> None:
        if not isinstance(event, TriggerEvent):
            raise PluginError(
                f"{what} of {self._name} yielded {type(event).__qualname__}, not a TriggerEvent"
            )
        key = event.partition_key
        if key is not None and not isinstance(key, str):
            raise PluginError(
                f"{what} of {self._name} yielded an event whose partition_key is a {type(key).__qualname__}",
                hint="make it a string",
            )
        packed = self._pack(event.payload)
        size_bytes = self._size_of(packed)
        self._in_transit.append(size_bytes)
        self._bytes_in_transit += size_bytes
        self._report(Derived(packed, size_bytes, key))
        while (
            len(self._in_transit) >= MOST_IN_TRANSIT
            or self._bytes_in_transit >= MOST_BYTES_IN_TRANSIT
        ):
            await self._room.wait()

    def reject_open_event(self, reason: str | None = None) -> bool:
        """Reject the open raw event, for `triggerer.abc.reject_shared_stream_event`. Any thread may call this.

        Returns:
            False: No raw event is open, so nothing was rejected.
        """
        if self._is_open:
            # Send a string, because another object may be impossible to pickle.
            self._report(Rejected(None if reason is None else str(reason)))
        return self._is_open

    async def _clean_up(self) -> None:
        error: Exception | None = None
        try:
            with plugin_code(f"cleanup() of {self._name}"):
                await self._trigger.cleanup()
        except Exception as raised:  # noqa: BLE001  (the boundary to the plugin: the service shows the error)
            error = raised
        self._report(CleanedUp(error))
