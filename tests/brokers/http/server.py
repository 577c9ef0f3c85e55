"""An HTTP server on loopback, in a thread. A test sets its answers, and reads the requests that it received."""

from __future__ import annotations

import hashlib
import json
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit


@dataclass(frozen=True)
class Asked:
    """A request that the server received."""

    path: str
    query: dict[str, list[str]]
    headers: Mapping[str, str]


@dataclass
class Reply:
    """One answer, with a pause of `delay_s` before the last byte."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0


class Server:
    """Sends `document` as JSON with its ETag, unless `answer` returns a reply. Records the requests in `asked`."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.url = f"http://{address[0]}:{address[1]}"
        self.document: Any = []
        self.has_etag = True
        self.date: str | None = None
        """The text of the `Date` header; with None, the header has the machine's time."""
        self.answer: Callable[[Asked], Reply | None] = lambda _: None
        self.asked: list[Asked] = []
        self.statuses: list[int] = []
        self.closed = threading.Event()

    def reply_to(self, asked: Asked) -> Reply:
        self.asked.append(asked)
        reply = self.answer(asked) or self._document_for(asked)
        self.statuses.append(reply.status)
        return reply

    def _document_for(self, asked: Asked) -> Reply:
        body = json.dumps(self.document).encode()
        if not self.has_etag:
            return Reply(body=body)
        etag = f'"{hashlib.sha256(body).hexdigest()[:8]}"'
        if asked.headers.get("If-None-Match") == etag:
            return Reply(304, headers={"ETag": etag})
        return Reply(body=body, headers={"ETag": etag, "Content-Type": "application/json"})


@contextmanager
def serving(certificate: Path | None = None, key: Path | None = None) -> Iterator[Server]:
    """Run a server while the block lasts. With a certificate for localhost, the server speaks TLS."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            asked = Asked(parts.path, parse_qs(parts.query), dict(self.headers))
            reply = server.reply_to(asked)
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            if reply.status != 304:
                self.send_header("Content-Length", str(len(reply.body)))
            self.end_headers()
            if reply.delay_s:
                self.wfile.write(reply.body[:1])
                self.wfile.flush()
                server.closed.wait(reply.delay_s)
                reply.body = reply.body[1:]
            self.wfile.write(reply.body)

        def date_time_string(self, timestamp: float | None = None) -> str:
            return server.date or super().date_time_string(timestamp)  # type: ignore[arg-type]

        def log_message(self, *args: Any) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    # A connection that the client closes is no error.
    http.handle_error = lambda *_: None  # type: ignore[method-assign]
    server = Server(http.server_address[:2])  # type: ignore[arg-type]
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        http.socket = context.wrap_socket(http.socket, server_side=True)
        server.url = f"https://localhost:{http.server_address[1]}"
    thread = threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.closed.set()
        http.shutdown()
        http.server_close()
        thread.join()
