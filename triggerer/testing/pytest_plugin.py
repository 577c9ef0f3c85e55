"""Fixtures for plugin authors' tests: `pytest_plugins = ["triggerer.testing.pytest_plugin"]` in the root conftest.py.

The plugin has no entry point, so only projects with this line use it. The fixture `streams` is asynchronous: it needs
pytest-asyncio or, if pytest-asyncio is not installed, anyio's plugin.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import anyio
import pytest

from triggerer.testing.harness import StreamHarness
from triggerer.testing.memory_broker import InMemoryBroker

try:
    from pytest_asyncio import fixture as _asynchronous
except ImportError:
    _asynchronous = pytest.fixture  # type: ignore[assignment]


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark, for sessions with `--strict-markers`."""
    config.addinivalue_line(
        "markers", "streams(**options): StreamHarness's arguments for the fixture `streams`"
    )


@_asynchronous
async def streams(request: pytest.FixtureRequest) -> AsyncIterator[StreamHarness]:
    """An open `StreamHarness`. `@pytest.mark.streams(persistence="manual")` sets its arguments."""
    mark = request.node.get_closest_marker("streams")
    harness = StreamHarness(**(mark.kwargs if mark is not None else {}))
    opened, finished = anyio.Event(), anyio.Event()

    async def live() -> None:
        async with harness:
            opened.set()
            await finished.wait()

    # The harness has a task group, which one task must enter and leave. pytest may set up and tear down the fixture in
    # two different tasks, so use a third task.
    task = asyncio.create_task(live())
    await opened.wait()
    yield harness
    finished.set()
    await task


@pytest.fixture
def memory_broker() -> InMemoryBroker:
    """An `InMemoryBroker` without a delivery limit."""
    return InMemoryBroker()


__all__ = ["memory_broker", "pytest_configure", "streams"]
