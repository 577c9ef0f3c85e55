"""Makes the proxies that stand in for isolated triggers in the runtime, and owns their threads and processes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Hashable, Iterable, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Literal, Self

import anyio
import structlog
from anyio.abc import TaskGroup

from triggerer.abc import (
    BaseEventTrigger,
    SharedStreamProducer,
    TriggerEvent,
    has_bookmark,
    is_acknowledged,
)
from triggerer.config import CoreSettings
from triggerer.errors import PluginError
from triggerer.isolation.messages import GeneratorMethod, Setup
from triggerer.isolation.process import TriggerProcess
from triggerer.isolation.remote_generator import RemoteGenerator
from triggerer.isolation.remote_trigger import RemoteTrigger
from triggerer.isolation.thread import TriggerThread

_log = structlog.get_logger(__name__)

Placement = Literal["thread", "process"]


@dataclass(frozen=True, slots=True)
class IsolationSettings:
    """Which triggers have a thread or process of their own, and the settings of these processes."""

    placements: Mapping[str, Placement] = field(default_factory=dict)
    """Maps a trigger's class path, or a watcher as `<asset>/<watcher>`, to the place where the trigger runs.

    If a trigger has an entry of each kind, the watcher's entry counts. A trigger without an entry runs on the service's
    event loop.
    """
    dags_folder: Path | None = None
    allowed_modules: tuple[str, ...] = ()
    log: CoreSettings | None = None
    """How a process logs. None: Python's default."""
    grace: float = 5.0
    """How many seconds a cancelled filter may take to end. After this, its process is killed or its thread is left
    behind.
    """


class Isolation:
    """Makes the proxies of isolated triggers, and owns their threads and processes.

    All triggers must end before the `async with` block is left.
    """

    def __init__(self, settings: IsolationSettings) -> None:
        self.settings = settings
        self._stack = AsyncExitStack()
        self._tasks: TaskGroup | None = None
        self._remotes: set[RemoteTrigger] = set()
        self._left_behind: dict[str, TriggerThread] = {}

    async def __aenter__(self) -> Self:
        self._tasks = await self._stack.enter_async_context(anyio.create_task_group())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        for remote in list(self._remotes):
            # The trigger's cleanup() was not called, or was cancelled.
            await self.close(remote)
        self.tasks.cancel_scope.cancel()
        return await self._stack.__aexit__(kind, error, trace)

    @property
    def tasks(self) -> TaskGroup:
        assert self._tasks is not None, "enter the isolation first"
        return self._tasks

    def placement_of(self, classpath: str, watchers: Iterable[str]) -> Placement | None:
        """Return where the trigger of these watchers (`<asset>/<watcher>`) runs. None: on the service's event loop."""
        placements = self.settings.placements
        for name in (*watchers, classpath):
            if name in placements:
                return placements[name]
        return None

    def proxy_class(
        self, cls: type[BaseEventTrigger], placement: Placement, *, classpath: str, name: str
    ) -> type[BaseEventTrigger]:
        """Return a proxy class with the arguments of `cls`. A proxy's filter or `run()` runs in a thread or process.

        Args:
            classpath: The path by which a process loads the class.
            name: The trigger's name, for logs and errors; unique among the running triggers.
        Raises:
            PluginError: The class has a bookmark, so its triggers cannot be isolated.
        """
        if has_bookmark(cls):
            raise PluginError(
                f"{classpath} has a bookmark and cannot be isolated",
                hint="remove it from [triggerer] isolation",
            )
        parts = {
            "__doc__": cls.__doc__,
            "__module__": cls.__module__,
            "__qualname__": cls.__qualname__,
            "isolation": self,
            "plugin": cls,
            "placement": placement,
            "classpath": classpath,
            "name": name,
        }
        base = _AcknowledgedProxy if is_acknowledged(cls) else _Proxy
        return type(cls.__name__, (base,), parts)

    def new_thread(self, name: str, trigger: BaseEventTrigger) -> TriggerThread:
        """Return a thread for a trigger, not open yet.

        Raises:
            PluginError: The trigger's previous thread is still blocked.
        """
        left = self._left_behind.get(name)
        if left is not None and left.is_alive:
            raise PluginError(
                f"The last thread of {name} is still blocked:\n{left.stack()}",
                hint='isolate the trigger as "process", which can be ended',
            )
        self._left_behind.pop(name, None)
        remote = TriggerThread(name, trigger)
        self._remotes.add(remote)
        return remote

    def new_process(self, name: str, classpath: str, kwargs: dict[str, Any]) -> TriggerProcess:
        """Return a process for a trigger, not open yet."""
        settings = self.settings
        setup = Setup(
            name, classpath, kwargs, settings.dags_folder, settings.allowed_modules, settings.log
        )
        remote = TriggerProcess(setup, self.tasks)
        self._remotes.add(remote)
        return remote

    async def close(self, remote: RemoteTrigger) -> None:
        """End an isolated trigger. While its thread does not end, `new_thread` refuses to start another."""
        self._remotes.discard(remote)
        # A filter that still runs was cancelled before, and did not end within its grace.
        await remote.aclose(0.0 if remote.is_running else self.settings.grace)
        if isinstance(remote, TriggerThread) and remote.is_alive:
            self._left_behind[remote.name] = remote


class _Proxy(BaseEventTrigger):
    """Stands in for a trigger whose filter, `run()` and `cleanup()` run in another thread or process.

    The proxy makes a trigger of the plugin on the service's event loop, because the runtime needs the trigger's key. A
    thread runs this trigger. A process makes another trigger from the same arguments.
    """

    isolation: ClassVar[Isolation]
    plugin: ClassVar[type[BaseEventTrigger]]
    placement: ClassVar[Placement]
    classpath: ClassVar[str]
    name: ClassVar[str]

    def __init__(self, **kwargs: Any) -> None:
        self._kwargs = kwargs
        self._trigger = self.plugin(**kwargs)
        self._remote: RemoteTrigger | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return self._trigger.serialize()

    def shared_stream_key(self) -> Hashable | None:
        return self._trigger.shared_stream_key()

    def describe_stream(self) -> str | None:
        return self._trigger.describe_stream()

    @classmethod
    def open_shared_stream(cls, kwargs: dict[str, Any]) -> AsyncIterator[Any]:
        return cls.plugin.open_shared_stream(kwargs)

    def filter_shared_stream(
        self, shared_stream: AsyncIterator[Any]
    ) -> AsyncGenerator[TriggerEvent, None]:
        return self._run_generator(GeneratorMethod.FILTER, shared_stream)

    def run(self) -> AsyncGenerator[TriggerEvent, None]:
        return self._run_generator(GeneratorMethod.RUN, None)

    async def _run_generator(
        self, method: GeneratorMethod, stream: AsyncIterator[Any] | None
    ) -> AsyncGenerator[TriggerEvent, None]:
        remote = await self._open_remote()
        generator = RemoteGenerator(remote, stream)
        remote.start(method)
        if stream is not None:
            self.isolation.tasks.start_soon(generator.pump, name=f"watcher[{self.name}]")
        try:
            async with aclosing(generator.events()) as events:
                async for event in events:
                    yield event
        finally:
            if stream is not None:
                await generator.stop()
            await remote.stop(self.isolation.settings.grace)

    async def _open_remote(self) -> RemoteTrigger:
        if self.placement == "thread":
            self._remote = self.isolation.new_thread(self.name, self._trigger)
        else:
            self._remote = self.isolation.new_process(self.name, self.classpath, self._kwargs)
        await self._remote.open()
        return self._remote

    async def cleanup(self) -> None:
        """Call the plugin's `cleanup()` in the trigger's thread or process, and end the thread or process.

        `cleanup()` is not called in three cases: no process was started, the thread or process has ended, or the filter
        still runs although it was cancelled.
        """
        try:
            if self._remote is None and self.placement == "thread":
                await self._open_remote()
            if self._remote is not None and self._remote.is_idle:
                await self._remote.clean_up()
        finally:
            remote, self._remote = self._remote, None
            if remote is not None:
                await self.isolation.close(remote)


class _AcknowledgedProxy(_Proxy):
    """A proxy in ack mode."""

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        return cls.plugin.create_shared_stream_producer(kwargs)
