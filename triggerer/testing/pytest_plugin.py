"""Fixtures for plugin authors' tests: `pytest_plugins = ["triggerer.testing.pytest_plugin"]` in the root conftest.py.

Opt-in, and not an entry point: installing triggerer changes nobody's test session. The asynchronous fixture is made
for pytest-asyncio where that is installed, and for anyio's plugin otherwise.
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
    """Make the mark known, for those who run with `--strict-markers`."""
    config.addinivalue_line(
        "markers", "streams(**options): StreamHarness's arguments for the fixture `streams`"
    )


@_asynchronous
async def streams(request: pytest.FixtureRequest) -> AsyncIterator[StreamHarness]:
    """A `StreamHarness` that is open; with other arguments by `@pytest.mark.streams(persistence="manual")`."""
    mark = request.node.get_closest_marker("streams")
    harness = StreamHarness(**(mark.kwargs if mark is not None else {}))
    opened, finished = anyio.Event(), anyio.Event()

    async def live() -> None:
        async with harness:
            opened.set()
            await finished.wait()

    # A task of its own: a fixture may be torn down by another task than the one that set it up, and a task group
    # has to be left by the task that entered it.
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
