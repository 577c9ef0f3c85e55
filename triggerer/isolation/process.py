"""An isolated trigger in its own process, as the service sees it."""

from __future__ import annotations

import pickle
from contextlib import suppress
from typing import Any, Final

import anyio
import structlog
from anyio.abc import TaskGroup

from triggerer.errors import PluginError
from triggerer.isolation.messages import Close, Command, Setup, Terminated
from triggerer.isolation.pickling import from_frame, in_frames, pack, to_frame, unpack
from triggerer.isolation.remote_trigger import RemoteTrigger
from triggerer.isolation.threadsafe_queue import ThreadsafeQueue
from triggerer.processes.child_process import ChildProcess
from triggerer.processes.ipc import ChannelClosed, MalformedFrame
from triggerer.processes.signals import signal_name

_log = structlog.get_logger(__name__)

_START_S: Final = 10.0
_REAP_S: Final = 5.0


class TriggerProcess(RemoteTrigger):
    """Runs a trigger in a process, for code that computes, keeps the interpreter's lock, leaks memory or crashes."""

    def __init__(self, setup: Setup, tasks: TaskGroup) -> None:
        """Make the object; `open` starts the process.

        Args:
            tasks: The task group that runs the communication with the process. It must outlive the process.
        """
        super().__init__(setup.name)
        self._setup = setup
        self._tasks = tasks
        self._commands: ThreadsafeQueue[Command] = ThreadsafeQueue()
        self._process: ChildProcess | None = None
        self._scope = anyio.CancelScope()
        self._talked = anyio.Event()

    @property
    def pid(self) -> int | None:
        """The id of the process, once it is started."""
        return None if self._process is None else self._process.pid

    async def open(self) -> None:
        # The start is shielded, because a cancellation after the process has started would skip `_talk`. Then `aclose`
        # would wait in vain for the end of `_talk`.
        with anyio.move_on_after(_START_S, shield=True) as starting:
            await self._start()
        self._tasks.start_soon(self._talk, name=f"isolation[{self.name}]")
        if starting.cancelled_caught:
            # Perhaps only a part of the arguments was sent. Then the process would read the next command as the rest.
            raise PluginError(
                f"The process of {self.name} did not take its arguments within {_START_S:g} s"
            )
        await self._until_ready()
        _log.info("trigger is isolated", trigger=self.name, placement="process", pid=self.pid)

    async def _start(self) -> None:
        try:
            self._process = await ChildProcess.start("triggerer.isolation.child")
        except OSError as error:
            raise PluginError(f"No process can be started for {self.name}: {error}") from error
        with suppress(ChannelClosed):
            # If the channel is closed, the process is dead. `_listen` will notice this and report it.
            await self._process.channel.send_bytes(pickle.dumps(self._setup))

    def send(self, command: Command) -> None:
        self._commands.put(command)

    def pack(self, value: Any) -> Any:
        return pack(value, name=self.name, what="a raw event")

    def size_of(self, packed: Any) -> int:
        return len(packed)

    def unpack(self, packed: Any) -> Any:
        return unpack(packed, name=self.name, what="the payload of an event")

    # Communication

    async def _talk(self) -> None:
        process = self._process
        assert process is not None
        error: Exception = PluginError(f"The process of {self.name} has ended")
        try:
            with self._scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(process.supervise)
                    tasks.start_soon(self._send, process)
                    error = await self._listen(process)
                    tasks.cancel_scope.cancel()
        finally:
            self._reports.put(Terminated(error))
            self._talked.set()

    async def _send(self, process: ChildProcess) -> None:
        while True:
            commands = [await self._commands.get(), *self._commands.take_all()]
            try:
                for frame in in_frames(commands):
                    await process.channel.send_bytes(to_frame(frame))
            except ChannelClosed:
                return  # `_listen` notices the closed channel too, and reports it

    async def _listen(self, process: ChildProcess) -> PluginError:
        """Read reports until the channel ends. Return the reason why it has ended."""
        while True:
            try:
                reports = from_frame(await process.channel.receive_bytes())
            except MalformedFrame as error:
                return PluginError(
                    f"The process of {self.name} sent data that cannot be understood: {error.reason}"
                )
            except ChannelClosed:
                return await self._died(process)
            except Exception as error:  # noqa: BLE001  (the plugin wrote to our channel: its trigger fails)
                return PluginError(
                    f"The process of {self.name} sent data that cannot be understood: {error!r}"
                )
            for report in reports:
                self._reports.put(report)

    async def _died(self, process: ChildProcess) -> PluginError:
        with anyio.move_on_after(_REAP_S):
            await process.wait()
        code = process.returncode
        how = (
            "closed its channel"
            if code is None
            else f"was killed by {signal_name(-code)}"
            if code < 0
            else f"ended with exit code {code}"
        )
        return PluginError(f"The process of {self.name} {how}")

    # The end

    async def aclose(self, grace: float) -> None:
        process = self._process
        if process is None:
            return
        self.send(Close())
        await process.aclose(grace)
        self._scope.cancel()
        with anyio.move_on_after(_REAP_S, shield=True):
            await self._talked.wait()
