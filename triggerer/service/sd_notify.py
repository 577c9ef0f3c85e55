"""Tells systemd, or whichever service manager asked for it, that the service is ready, alive or stopping.

The protocol of sd_notify(3) and sd_watchdog_enabled(3): datagrams to the Unix socket that `NOTIFY_SOCKET` names.
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

_log = structlog.get_logger(__name__)

_SEND_AGAIN_S: Final = 1.0


class SystemdNotifier:
    """Sends states to the service manager; without one, it does nothing.

    Nothing here waits for the manager, which may be slow to read: what it does not take now is sent again while the
    service serves, merged into one datagram.

    Args:
        address: A path, or an abstract name behind `@`; None: there is no manager.
        watchdog: The manager ends a service that it has not heard of for so long; None: it does not watch.
    """

    def __init__(self, address: str | None, watchdog: timedelta | None = None) -> None:
        self._address = address
        self._watchdog = watchdog
        self._unsent: dict[str, str] = {}
        self._has_failed = False
        self._is_stopping = False

    @classmethod
    def from_environment(cls, environ: MutableMapping[str, str]) -> SystemdNotifier:
        """Take the manager's variables out of the environment: no child is to speak for the service.

        To be called before any child is started.
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
        """Tell one line for people (`systemctl status`); not any more once the service stops."""
        if not self._is_stopping:
            # A datagram has a variable on each line.
            self._tell(STATUS=" ".join(status.split()))

    def tell_stopping(self, status: str) -> None:
        """Tell that the service stops; the first time counts. The manager does not expect pings any more."""
        if not self._is_stopping:
            self._is_stopping = True
            self._tell(STOPPING="1", STATUS=status)

    @asynccontextmanager
    async def serving(self, status: str) -> AsyncIterator[None]:
        """Within the block the service is ready, and the watchdog is pinged from this event loop; then it stops."""
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
        # sd_watchdog_enabled(3): every half of the time.
        interval = math.inf if self._watchdog is None else self._watchdog.total_seconds() / 2
        while True:
            if self._watchdog is not None:
                self._tell(WATCHDOG="1")
            elif self._unsent:
                self._tell()
            await anyio.sleep(min(interval, _SEND_AGAIN_S) if self._unsent else interval)

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
                    "the service manager cannot be told",
                    unsent=dict(self._unsent),
                    error=str(error),
                )
            self._has_failed = True
        else:
            self._has_failed = False
            self._unsent.clear()


def _read_watchdog(usec: str | None, pid: str | None) -> timedelta | None:
    if usec is None or (pid is not None and pid != str(os.getpid())):
        # Where it names another process, the variables were inherited.
        return None
    if not usec.isascii() or not usec.isdecimal() or int(usec) == 0:
        _log.warning("WATCHDOG_USEC is no number of microseconds and is ignored", value=usec)
        return None
    return timedelta(microseconds=int(usec))


def _send(address: str, datagram: bytes) -> None:
    """Send it now or not at all.

    A socket for each, as in sd_notify(3): the manager may have made its own anew since the last.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        sender.connect("\0" + address[1:] if address.startswith("@") else address)
        sender.send(datagram)
