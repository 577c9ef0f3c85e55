from collections.abc import Iterator
from typing import Any

import pytest

from tests.brokers.http.server import Server, serving
from triggerer.errors import UnknownConnection
from triggerer.testing.pytest_plugin import streams


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The settings of `[connections.http]`, which a test may change."""
    settings: dict[str, Any] = {}

    def resolve(name: str) -> dict[str, Any]:
        if name != "http":
            raise UnknownConnection(f"there is no connection {name!r}")
        return settings

    monkeypatch.setattr("triggerer.abc._resolve_connection", resolve)
    return settings


__all__ = ["connection", "server", "streams"]
