"""The base of small HTTP servers that answer in JSON and log nothing."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from http.server import BaseHTTPRequestHandler
from typing import Any


class JsonHandler(BaseHTTPRequestHandler, ABC):
    """Handles GET and POST by `respond`, which a subclass defines."""

    protocol_version = "HTTP/1.1"

    @abstractmethod
    def respond(self) -> None:
        """Handle the request, and call `answer` with the result."""

    def do_GET(self) -> None:
        self.respond()

    def do_POST(self) -> None:
        self.respond()

    def answer(self, content: Any, status: int = 200) -> None:
        self.answer_with(json.dumps(content), "application/json", status)

    def answer_with(self, text: str, content_type: str, status: int = 200) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass
