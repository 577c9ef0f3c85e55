"""Serves the built page and the made-up answers on a loopback port: `python -m tests.page.double.server big 8123`."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, Final
from urllib.parse import parse_qs, unquote, urlsplit

from tests.page.double import routes
from tests.page.double.data import NOTHING, SIZES, Data, Row

PAGE: Final = Path(__file__).parents[3] / "triggerer" / "api" / "page"
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; worker-src 'self'; frame-ancestors 'none'; base-uri 'self'; form-action 'self'; report-uri /csp"
)
_TYPES: Final = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".html": "text/html; charset=utf-8",
}


class Double:
    """A stand-in for the service's API. It records the requests, and sends open pages an event when `hints` changes."""

    def __init__(self, data: Data, *, token: str | None = None) -> None:
        self.data = data
        self.token = token
        self.asked: list[tuple[str, str]] = []
        self.changes: list[tuple[str, str, Row]] = []
        self.reports: list[str] = []
        self.hints = 0
        self.closing = threading.Event()
        self.log = data.log() if data.size is not NOTHING else b""
        self.server: ThreadingHTTPServer | None = None

    def start(self, port: int = 0) -> str:
        """Start to serve on a loopback port, and return the address. Port 0 takes a free port."""
        self.closing.clear()
        handler = type("Handler", (_Handler,), {"double": self})
        self.server = _Server(("127.0.0.1", port), handler)
        threading.Thread(
            target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def stop(self) -> None:
        """Stop serving; the port is free afterwards."""
        assert self.server is not None
        self.closing.set()
        self.server.shutdown()
        self.server.server_close()
        self.server = None


@contextmanager
def serving(size: str, **options: Any) -> Iterator[tuple[Double, str]]:
    """Serve made-up data of a size until the block ends; yield the stand-in and its address."""
    mark = options.pop("mark", "")
    double = Double(Data(SIZES[size], mark=mark), **options)
    address = double.start()
    try:
        yield double, address
    finally:
        if double.server is not None:
            double.stop()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing, because browsers close connections in the middle of answers."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    double: ClassVar[Double]

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer({})

    def _change(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        text = self.rfile.read(length) or b"{}"
        self._answer(json.loads(text))

    do_POST = do_PATCH = do_DELETE = _change  # noqa: N815

    def _answer(self, body: Row) -> None:
        url = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        self.double.asked.append((self.command, self.path))
        if url.path == "/csp":
            self.double.reports.append(json.dumps(body))
            return self._send(204, b"", "text/plain")
        if url.path == "/livez":
            return self._send(200, b"ok", "text/plain")
        if not url.path.startswith("/api/"):
            return self._file(url.path)
        parts = [unquote(part) for part in url.path.removeprefix("/api/v1/").split("/")]
        if parts == ["session"]:
            return self._sign_in(body)
        if self.double.token and f"session={self.double.token}" not in self.headers.get(
            "cookie", ""
        ):
            return self._problem(401, "Sign in needed", "the request needs a token")
        if parts == ["changes"]:
            return self._changes()
        if parts[-1] == "logs":
            return self._logs(query)
        if self.command != "GET":
            self.double.changes.append((self.command, url.path, body))
            self.double.hints += 1
            answer = routes.change(self.double.data, parts, body)
        else:
            answer = routes.read(self.double.data, parts, query)
        if answer is None:
            return self._problem(404, "Nothing there", f"there is nothing at {url.path}")
        return self._send(200, json.dumps(answer).encode(), "application/json")

    def _sign_in(self, body: Row) -> None:
        if body.get("token") != self.double.token:
            return self._problem(401, "Sign in needed", "the token is unknown")
        return self._send(
            200,
            b"{}",
            "application/json",
            {"Set-Cookie": f"session={self.double.token}; HttpOnly; SameSite=Lax; Path=/"},
        )

    def _file(self, path: str) -> None:
        file = PAGE / path.strip("/")
        if not path.strip("/") or not file.is_file():
            file = PAGE / "index.html"
        headers = {
            "Content-Security-Policy": POLICY,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
        }
        self._send(
            200, file.read_bytes(), _TYPES.get(file.suffix, "application/octet-stream"), headers
        )

    def _logs(self, query: dict[str, str]) -> None:
        log = self.double.log
        tail = query.get("tail")
        start = int(query.get("offset", 0)) if tail is None else max(0, len(log) - int(tail))
        piece = log[start : start + int(tail or query.get("limit", 65_536))]
        self._send(
            200,
            piece,
            "text/plain",
            {"X-Log-Offset": str(start), "X-Log-Size": str(len(log)), "X-Run-State": "running"},
        )

    def _changes(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        seen = self.double.hints
        try:
            self.wfile.write(b"event: alive\ndata: {}\n\n")
            while not self.double.closing.wait(0.25):
                if self.double.hints != seen:
                    seen = self.double.hints
                    self.wfile.write(
                        b'event: changes\ndata: {"runs":["*"],"events":["*"],"streams":["*"],"dags":["*"]}\n\n'
                    )
                    self.wfile.flush()
                    time.sleep(0.75)
        except OSError:
            pass
        self.close_connection = True

    def _problem(self, status: int, title: str, detail: str) -> None:
        body = {
            "type": "/docs/errors#x",
            "title": title,
            "status": status,
            "detail": detail,
            "hint": None,
            "request_id": "r1",
        }
        self._send(status, json.dumps(body).encode(), "application/problem+json")

    def _send(
        self, status: int, body: bytes, kind: str, headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    one = Double(Data(SIZES[sys.argv[1]]))
    print(one.start(int(sys.argv[2]) if len(sys.argv) > 2 else 0), flush=True)
    threading.Event().wait()
