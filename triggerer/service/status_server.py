"""Answers `/metrics`, `/livez` and `/readyz` from threads, also while the event loop is blocked.

The server listens at a Unix socket in `home`, and at the address in `[metrics]` if there is one. Each connection has a
thread. So the server closes a connection that is silent for 10 s, and refuses connections beyond the eighth.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

import structlog

from triggerer.errors import ConfigurationError
from triggerer.store.database.wakeups.transport import short_path

_log = structlog.get_logger(__name__)

_MOST_AT_ONCE: Final = 8
_TIMEOUT_S: Final = 10.0
_JOIN_S: Final = 2.0


class Answer(NamedTuple):
    """The answer to one request."""

    status: int
    content_type: str
    body: bytes


Routes = Mapping[str, Callable[[], Answer]]


@contextmanager
def serving(routes: Routes, listeners: list[socket.socket]) -> Iterator[None]:
    """Serve these paths on these sockets until the end of the block, which closes the sockets."""
    connections = threading.BoundedSemaphore(_MOST_AT_ONCE)
    threads = [
        threading.Thread(
            target=_accept, args=(one, routes, connections), name="triggerer-status", daemon=True
        )
        for one in listeners
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for one in listeners:
            with suppress(OSError):
                # This ends the thread's wait in `accept`.
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in threads:
            thread.join(_JOIN_S)


@contextmanager
def unix_listener(path: Path) -> Iterator[socket.socket]:
    """Yield a socket that listens at a path, for this user only. The file is deleted at the end."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        # With PostgreSQL, possibly nothing else has made the service's home yet.
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The path contains this process's id, so only a process that has ended can have left the file.
        path.unlink(missing_ok=True)
        with short_path(path) as address:
            # Set the mode by the umask: before a later chmod, another user could connect.
            before = os.umask(0o177)
            try:
                listener.bind(address)
            finally:
                os.umask(before)
        listener.listen(_MOST_AT_ONCE)
        try:
            yield listener
        finally:
            with suppress(OSError):
                path.unlink(missing_ok=True)


def tcp_listener(host: str, port: int) -> socket.socket:
    """Return a socket that listens at this address.

    Raises:
        ConfigurationError: The address is not one of this machine, or it is taken.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=_MOST_AT_ONCE)
    except OSError as error:
        raise ConfigurationError(
            f"the metrics cannot be served at {host}:{port}: {error.strerror or error}",
            hint="change [metrics] host or port",
        ) from error


def _accept(
    listener: socket.socket, routes: Routes, connections: threading.BoundedSemaphore
) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return  # the end of `serving` has closed the socket
        connection.settimeout(_TIMEOUT_S)
        if not connections.acquire(blocking=False):
            connection.close()
            continue
        threading.Thread(
            target=_serve,
            args=(connection, routes, connections),
            name="triggerer-status",
            daemon=True,
        ).start()


def _serve(
    connection: socket.socket, routes: Routes, connections: threading.BoundedSemaphore
) -> None:
    with ExitStack() as at_end:
        at_end.callback(connections.release)
        at_end.callback(connection.close)
        with suppress(OSError):
            # The handler's constructor reads the request and answers it. It takes no argument for the routes, so a new
            # subclass has them.
            type("_Handler", (_Handler,), {"routes": routes})(connection, ("", 0), None)


class _Handler(BaseHTTPRequestHandler):
    """Answers one request; see `serving`."""

    routes: ClassVar[Routes]
    server_version = "triggerer"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer a request, by its path alone."""
        route = self.routes.get(self.path.partition("?")[0])
        if route is None:
            self._send(Answer(404, "text/plain; charset=utf-8", b"not found\n"))
            return
        try:
            self._send(route())
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001 (the boundary of the thread)
            # A bug must appear in the log, and must not look like a healthy answer.
            _log.exception("a request for the status failed", path=self.path)
            self._send(Answer(500, "text/plain; charset=utf-8", f"{error!r}\n".encode()))

    def do_HEAD(self) -> None:
        """Answer without the body."""
        self.do_GET()

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def log_message(self, *_: Any) -> None:
        """Log nothing, because a probe comes every few seconds."""
