"""Asks the processes of a service for their status, over their Unix sockets in `home`."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from triggerer.errors import ServiceAway
from triggerer.processes.instance_ids import is_known_dead
from triggerer.store.database.wakeups.transport import short_path

_PREFIX: Final = "status-"
_SUFFIX: Final = ".sock"
_TIMEOUT_S: Final = 5.0


class Status(NamedTuple):
    """The answer of one process."""

    status: int
    content_type: str
    body: bytes


def socket_path(home: Path, process: str) -> Path:
    """Return the socket of a process of the service, `<host>:<pid>`. Hosts that share a home may use one pid."""
    return home / f"{_PREFIX}{process}{_SUFFIX}"


def ask_service(home: Path, target: str) -> Status:
    """Return the answer of the service in this home to `/metrics`, `/livez` or `/readyz`. Blocks, so use a thread.

    If several services share a home, one of them answers. Ask each of them at its address in `[metrics]` instead.

    Raises:
        ServiceAway: No service answers.
    """
    for path in _sockets(home):
        with suppress(OSError, http.client.HTTPException):
            return _ask(path, target)
    raise ServiceAway(f"no service in {home} answers", hint="is it running, and as the same user?")


def delete_left_sockets(home: Path) -> None:
    """Delete the sockets that killed processes of this machine left behind."""
    for path in home.glob(f"{_PREFIX}*{_SUFFIX}"):
        process = path.name.removeprefix(_PREFIX).removesuffix(_SUFFIX)
        if is_known_dead(f"{process}:"):
            path.unlink(missing_ok=True)


def _sockets(home: Path) -> Iterator[Path]:
    """Yield the sockets, newest first. Some may belong to no process, because a killed process leaves its socket."""
    found = []
    for path in home.glob(f"{_PREFIX}*{_SUFFIX}"):
        with suppress(OSError):
            found.append((path.stat().st_mtime, path))
    for _, path in sorted(found, reverse=True):
        yield path


def _ask(path: Path, target: str) -> Status:
    connection = _UnixConnection(path)
    try:
        connection.request("GET", target)
        response = connection.getresponse()
        body = response.read()
        return Status(response.status, response.headers.get("Content-Type", ""), body)
    finally:
        connection.close()


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_TIMEOUT_S)
        with short_path(self._path) as address:
            self.sock.connect(address)
