"""A trigger in a process of its own."""

from __future__ import annotations

import os
import pickle
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import anyio
import structlog
from anyio.abc import TaskGroup

from triggerer.config import CoreSettings
from triggerer.errors import PluginError
from triggerer.group_leader import GroupLeader
from triggerer.ipc import CHANNEL_VARIABLE, Channel
from triggerer.isolation.mailbox import Mailbox
from triggerer.isolation.messages import Close, Gone, Order, Setup
from triggerer.isolation.pickling import from_frame, pack, to_frame, unpack
from triggerer.isolation.place import Place

_log = structlog.get_logger(__name__)

_CHANNEL_ENDED: Final = (
    anyio.EndOfStream,
    anyio.IncompleteRead,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
)
_START_S: Final = 10.0
_REAP_S: Final = 5.0


class ProcessPlace(Place):
    """Good for code that computes, holds the interpreter's lock, leaks or crashes."""

    def __init__(
        self,
        name: str,
        classpath: str,
        kwargs: dict[str, Any],
        *,
        tasks: TaskGroup,
        dags_folder: Path | None,
        allowed_modules: tuple[str, ...],
        log: CoreSettings | None,
    ) -> None:
        """`tasks` runs what talks to the process, and outlives this place."""
        super().__init__(name)
        self._classpath = classpath
        self._kwargs = kwargs
        self._tasks = tasks
        self._dags_folder = dags_folder
        self._allowed_modules = allowed_modules
        self._log_settings = log
        self._orders: Mailbox[Order] = Mailbox()
        self._process: GroupLeader | None = None
        self._channel: Channel | None = None
        self._lifeline: int | None = None
        self._scope = anyio.CancelScope()
        self._talked = anyio.Event()

    @property
    def pid(self) -> int | None:
        """Of the process, once it is started."""
        return None if self._process is None else self._process.pid

    async def open(self) -> None:
        # Shielded: whoever is started is talked to, which `aclose` counts on.
        with anyio.move_on_after(_START_S, shield=True) as starting:
            await self._start()
        self._tasks.start_soon(self._talk, name=f"isolation[{self.name}]")
        if starting.cancelled_caught:
            # Cut off in the middle: it would take what follows for the rest of them.
            raise PluginError(
                f"The process of {self.name} did not take its arguments within {_START_S:g} s"
            )
        await self._until_ready()
        _log.info("trigger is moved", trigger=self.name, placement="process", pid=self.pid)

    async def _start(self) -> None:
        self._channel, theirs = await Channel.open()
        # Closed by the kernel when this process dies, however it dies.
        lifeline, self._lifeline = os.pipe()
        try:
            self._process = GroupLeader(
                # -P: the folder that the service was started in is no place to import from.
                [sys.executable, "-P", "-m", "triggerer.isolation.child"],
                pass_fds=[theirs.fileno(), lifeline],
                env={**os.environ, CHANNEL_VARIABLE: str(theirs.fileno())},
            )
        except OSError as error:
            raise PluginError(f"No process can be started for {self.name}: {error}") from error
        finally:
            theirs.close()
            os.close(lifeline)
        setup = Setup(
            self.name,
            self._classpath,
            self._kwargs,
            self._dags_folder,
            self._allowed_modules,
            lifeline,
            self._log_settings,
        )
        with suppress(*_CHANNEL_ENDED):
            # One that is dead already is found out by whoever listens to it.
            await self._channel.send_bytes(pickle.dumps(setup))

    def order(self, order: Order) -> None:
        self._orders.put(order)

    def pack(self, value: Any) -> Any:
        return pack(value, name=self.name, what="a raw event")

    def unpack(self, packed: Any) -> Any:
        return unpack(packed, name=self.name, what="the payload of an event")

    # Talking to it

    async def _talk(self) -> None:
        assert self._channel is not None
        assert self._process is not None
        error: Exception = PluginError(f"The process of {self.name} has ended")
        try:
            with self._scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._send, self._channel)
                    error = await self._listen(self._channel, self._process)
                    tasks.cancel_scope.cancel()
        finally:
            self._reports.put(Gone(error))
            self._talked.set()

    async def _send(self, channel: Channel) -> None:
        while True:
            orders = [await self._orders.get(), *self._orders.take_all()]
            try:
                await channel.send_bytes(to_frame(orders))
            except _CHANNEL_ENDED:
                return  # the listening side finds out as well

    async def _listen(self, channel: Channel, process: GroupLeader) -> PluginError:
        """Take reports until none can come; return why."""
        while True:
            try:
                told = from_frame(await channel.receive_bytes())
            except _CHANNEL_ENDED:
                return await self._died(process)
            except Exception as error:  # noqa: BLE001  (the plugin wrote onto our channel: its trigger fails)
                return PluginError(f"The process of {self.name} cannot be understood: {error!r}")
            for report in told:
                self._reports.put(report)

    async def _died(self, process: GroupLeader) -> PluginError:
        with anyio.move_on_after(_REAP_S):
            await process.wait()
        code = process.returncode
        how = (
            "closed its channel"
            if code is None
            else f"was killed by {_name_of(-code)}"
            if code < 0
            else f"ended with exit code {code}"
        )
        return PluginError(f"The process of {self.name} {how}")

    # Ending it

    async def aclose(self, grace: float) -> None:
        process, channel = self._process, self._channel
        if process is not None:
            self.order(Close())
            with anyio.move_on_after(grace, shield=True):
                await process.wait()
            # With what the plugin has started.
            process.kill()
            with anyio.move_on_after(_REAP_S, shield=True):
                await process.wait()
                self._scope.cancel()
                await self._talked.wait()
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None
        if channel is not None:
            with anyio.move_on_after(1, shield=True):
                await channel.aclose()


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        # One of the real-time signals, most of which have no name.
        return f"signal {number}"
