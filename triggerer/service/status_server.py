"""Answers `/metrics`, `/livez` and `/readyz` from threads, also while the event loop is blocked.

The server listens at a Unix socket in `home`, and at the address in `[metrics]` if there is one.

Each connection has a thread, so at most eight connections may be open. When a ninth arrives, the server closes the
oldest, so that slow clients cannot lock out a health probe. The server also closes a connection after 10 s of silence.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

import structlog

from triggerer.errors import ConfigurationError
from triggerer.store.database.wakeups.transport import short_path

_log = structlog.get_logger(__name__)

_MOST_AT_ONCE: Final = 8
_BACKLOG: Final = 128
"""The most connections that wait to be accepted."""
_TIMEOUT_S: Final = 10.0
_JOIN_S: Final = 2.0
_RETRY_S: Final = 0.2


class Answer(NamedTuple):
    """The answer to one request."""

    status: int
    content_type: str
    body: bytes


Routes = Mapping[str, Callable[[], Answer]]


@contextmanager
def serving(routes: Routes, listeners: list[socket.socket]) -> Iterator[None]:
    """Serve these paths on these sockets until the end of the block, which closes the sockets."""
    server = _Server(routes)
    threads = [
        threading.Thread(target=server.accept, args=(one,), name="triggerer-status", daemon=True)
        for one in listeners
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        server.stopping.set()
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
        # With PostgreSQL, the service's home may not exist yet.
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The path contains this host and this process id. So an existing file was left by a process that has ended.
        path.unlink(missing_ok=True)
        with short_path(path) as address:
            # Set the mode by the umask: before a later chmod, another user could connect.
            before = os.umask(0o177)
            try:
                listener.bind(address)
            finally:
                os.umask(before)
        listener.listen(_BACKLOG)
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
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise ConfigurationError(
            f"the metrics cannot be served at {host}:{port}: {error.strerror or error}",
            hint="change [metrics] host or port",
        ) from error


class _Server:
    """Accepts connections, and answers each in a thread of its own."""

    def __init__(self, routes: Routes) -> None:
        self.stopping = threading.Event()
        self._routes = routes
        self._lock = threading.Lock()
        self._connections: dict[socket.socket, None] = {}
        """The open connections, the oldest first."""

    def accept(self, listener: socket.socket) -> None:
        """Accept connections until the server stops."""
        while not self.stopping.is_set():
            try:
                connection, _ = listener.accept()
            except OSError as error:
                if not self.stopping.is_set():
                    _log.warning("a request for the status cannot be accepted", error=str(error))
                    # Perhaps no descriptor is free. The next try may succeed.
                    self.stopping.wait(_RETRY_S)
                continue
            connection.settimeout(_TIMEOUT_S)
            self._add(connection)
            self._start(connection)

    def _add(self, connection: socket.socket) -> None:
        with self._lock:
            if len(self._connections) >= _MOST_AT_ONCE:
                oldest = next(iter(self._connections))
                del self._connections[oldest]
                with suppress(OSError):
                    # This ends the wait of the oldest connection's thread, which closes the connection.
                    oldest.shutdown(socket.SHUT_RDWR)
            self._connections[connection] = None

    def _start(self, connection: socket.socket) -> None:
        thread = threading.Thread(
            target=self._serve, args=(connection,), name="triggerer-status", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:
            _log.warning("a request for the status has no thread", error=str(error))
            self._close(connection)

    def _serve(self, connection: socket.socket) -> None:
        try:
            with suppress(OSError):
                # The constructor of the handler answers the request, and takes no routes. So the routes are an
                # attribute of a new subclass.
                type("_Handler", (_Handler,), {"routes": self._routes})(connection, ("", 0), None)
        finally:
            self._close(connection)

    def _close(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections.pop(connection, None)
        connection.close()


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
