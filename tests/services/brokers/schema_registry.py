"""A schema registry in a thread, with the part of Confluent's protocol that readers use."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.services.http_answers import JsonHandler


class Registry:
    """Schemas by id, and by subject and version.

    Attributes:
        asked: The paths of the requests, in order.
        status: The HTTP status of every answer. If it is not 200, each answer has an error instead of a schema.
        page: The text of every answer, to imitate a server that is no registry. None: answer as a registry.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.logins: set[str | None] = set()
        self.status = 200
        self.page: str | None = None
        self._by_id: dict[int, dict[str, Any]] = {}
        self._by_subject: dict[tuple[str, int], dict[str, Any]] = {}
        self._serialized: dict[int, str] = {}
        registry = self

        class Handler(JsonHandler):
            def respond(self) -> None:
                registry.asked.append(self.path)
                registry.logins.add(self.headers["Authorization"])
                if registry.page is not None:
                    return self.answer_with(registry.page, "text/html")
                answer = registry._find(self.path)
                status = registry.status if registry.status != 200 else 200 if answer else 404
                missing = {"error_code": 40403, "message": "not found"}
                return self.answer(answer if status == 200 else missing, status)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def register(
        self,
        kind: str,
        schema: str,
        *,
        subject: str = "values",
        version: int = 1,
        references: tuple[tuple[str, str], ...] = (),
        serialized: str | None = None,
    ) -> int:
        """Add a schema, and return its id.

        Args:
            references: Pairs of a name and a subject. The name stands for version 1 of the subject.
        """
        schema_id = 100 + len(self._by_id)
        found = {
            "schema": schema,
            "schemaType": kind,
            "references": [
                {"name": name, "subject": other, "version": 1} for name, other in references
            ],
        }
        self._by_id[schema_id] = found
        self._by_subject[subject, version] = found | {
            "subject": subject, "version": version, "id": schema_id,
        }  # fmt: skip
        if serialized is not None:
            self._serialized[schema_id] = serialized
        return schema_id

    def _find(self, path: str) -> dict[str, Any] | None:
        parts = urlsplit(path)
        serialized = parse_qs(parts.query).get("format") == ["serialized"]
        match parts.path.strip("/").split("/"):
            case ["schemas", "ids", schema_id]:
                found, number = self._by_id.get(int(schema_id)), int(schema_id)
            case ["subjects", subject, "versions", version]:
                found = self._by_subject.get((subject, int(version)))
                number = 0 if found is None else found["id"]
            case _:
                return None
        if found is not None and serialized and number in self._serialized:
            return found | {"schema": self._serialized[number]}
        return found


@contextmanager
def open_registry() -> Iterator[Registry]:
    """Serve until the end of the block."""
    registry = Registry()
    thread = threading.Thread(target=registry.server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield registry
    finally:
        registry.server.shutdown()
        thread.join()
        registry.server.server_close()
