"""Tells systemd, or another service manager, that the service is ready, alive or stopping.

The messages are datagrams to the Unix socket that `NOTIFY_SOCKET` names. Source: sd_notify(3), sd_watchdog_enabled(3).
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final

import anyio
import structlog

from triggerer.synchronization import AutoResetEvent

_log = structlog.get_logger(__name__)

_SEND_AGAIN_S: Final = 1.0


class SystemdNotifier:
    """Sends states to the service manager; does nothing if there is none.

    Sending never waits. If the manager does not accept a state at once, the state is sent again: together with the next
    state, and each second while the service is serving.

    Args:
        address: A path, or `@` and an abstract name; None if there is no manager.
        watchdog: The manager kills a service that sends nothing for this time. None: the manager has no watchdog.
    """

    def __init__(self, address: str | None, watchdog: timedelta | None = None) -> None:
        self._address = address
        self._watchdog = watchdog
        self._unsent: dict[str, str] = {}
        self._has_failed = False
        self._needs_repeat = AutoResetEvent()
        """Wakes `_keep_telling` when a state was not accepted."""
        self._is_stopping = False

    @classmethod
    def from_environment(cls, environ: MutableMapping[str, str]) -> SystemdNotifier:
        """Return a notifier for the service manager, and remove the manager's variables from the environment.

        Call this before any child process starts. Otherwise a child could report to the manager in the service's name.
        """
        address = environ.pop("NOTIFY_SOCKET", None) or None
        watchdog = _read_watchdog(
            environ.pop("WATCHDOG_USEC", None), environ.pop("WATCHDOG_PID", None)
        )
        if address is not None and not address.startswith(("/", "@")):
            _log.warning("NOTIFY_SOCKET names no Unix socket and is ignored", address=address)
            address = None
        return cls(address, watchdog)

    def tell_status(self, status: str) -> None:
        """Send one line for `systemctl status`. Does nothing once the service is stopping."""
        if not self._is_stopping:
            # Each line of a datagram is one variable, so the status must not contain a line break.
            self._tell(STATUS=" ".join(status.split()))

    def tell_stopping(self, status: str) -> None:
        """Say that the service is stopping; later calls do nothing. The manager stops expecting watchdog pings."""
        if not self._is_stopping:
            self._is_stopping = True
            self._tell(STOPPING="1", STATUS=status)

    @asynccontextmanager
    async def serving(self, status: str) -> AsyncIterator[None]:
        """Report the service as ready, and ping the watchdog until the end of the block. Then report it as stopping."""
        async with anyio.create_task_group() as tasks:
            if not self._is_stopping:
                self._tell(READY="1", STATUS=status)
            tasks.start_soon(self._keep_telling)
            try:
                yield
            finally:
                self.tell_stopping("Stopping")
                tasks.cancel_scope.cancel()

    async def _keep_telling(self) -> None:
        # Ping after half of the watchdog's time, as sd_watchdog_enabled(3) recommends.
        interval = math.inf if self._watchdog is None else self._watchdog.total_seconds() / 2
        while True:
            if self._watchdog is not None:
                self._tell(WATCHDOG="1")
            elif self._unsent:
                self._tell()
            if self._unsent:
                await anyio.sleep(min(interval, _SEND_AGAIN_S))
            else:
                await self._needs_repeat.wait_for(interval)

    def _tell(self, **state: str) -> None:
        if self._address is None:
            return
        self._unsent |= state
        lines = "\n".join(f"{name}={value}" for name, value in self._unsent.items())
        try:
            _send(self._address, lines.encode())
        except OSError as error:
            if not self._has_failed:
                _log.warning(
                    "the service manager cannot be reached",
                    unsent=dict(self._unsent),
                    error=str(error),
                )
            self._has_failed = True
            self._needs_repeat.set()
        else:
            self._has_failed = False
            self._needs_repeat.clear()
            self._unsent.clear()


def _read_watchdog(usec: str | None, pid: str | None) -> timedelta | None:
    if usec is None or (pid is not None and pid != str(os.getpid())):
        # The variables are meant for another process, from which this process inherited them.
        return None
    if not usec.isascii() or not usec.isdecimal() or int(usec) == 0:
        _log.warning("WATCHDOG_USEC is no number of microseconds and is ignored", value=usec)
        return None
    return timedelta(microseconds=int(usec))


def _send(address: str, datagram: bytes) -> None:
    """Send the datagram without waiting.

    Each datagram gets a new socket, as in sd_notify(3), because the manager may have replaced its socket.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        sender.connect("\0" + address[1:] if address.startswith("@") else address)
        sender.send(datagram)
