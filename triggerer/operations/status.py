"""Asks a process of the service for its status and metrics, over the process's Unix socket in `home`."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from triggerer.errors import ServiceAway
from triggerer.processes.instance_ids import has_no_process
from triggerer.store.database.wakeups.transport import short_path

_PREFIX: Final = "status-"
_SUFFIX: Final = ".sock"
_TIMEOUT_S: Final = 5.0


class Status(NamedTuple):
    """The HTTP response of a process."""

    status: int
    content_type: str
    body: bytes


def socket_path(home: Path, process: str) -> Path:
    """Return the path of the status socket of a process, `<host>:<pid>`.

    The path contains the host, because processes on two hosts that share a home may have the same pid.
    """
    return home / f"{_PREFIX}{process}{_SUFFIX}"


def ask_service(home: Path, target: str) -> Status:
    """Request `target` (`/metrics`, `/livez` or `/readyz`) from the service of this home, and return the response.

    The function blocks, so call it in a thread. If several processes share a home, any of them may respond.

    Raises:
        ServiceAway: No process responds.
    """
    for path in _sockets(home):
        with suppress(OSError, http.client.HTTPException):
            return _ask(path, target)
    raise ServiceAway(f"no service in {home} answers", hint="is it running, and as the same user?")


def delete_left_sockets(home: Path) -> None:
    """Delete the sockets that killed processes of this machine left behind.

    Containers that share the home may have one host name, and not see each other's processes. So a socket on which a
    process listens is kept.
    """
    for path in home.glob(f"{_PREFIX}*{_SUFFIX}"):
        process = path.name.removeprefix(_PREFIX).removesuffix(_SUFFIX)
        if has_no_process(process) and _refuses(path):
            path.unlink(missing_ok=True)


def _refuses(path: Path) -> bool:
    """True if no process of this machine listens on the socket."""
    connection = _UnixConnection(path)
    try:
        connection.connect()
    except ConnectionRefusedError:
        return True
    except OSError:
        # The socket was deleted meanwhile, or belongs to another user, or its process is busy.
        return False
    finally:
        connection.close()
    return False


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
