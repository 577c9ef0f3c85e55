"""A folder for notes, an upstream, and the three placements of a trigger."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import anyio
import pytest

from tests.isolation import triggers
from tests.isolation.processes import isolated_processes
from tests.unit.streams.streams import Upstream
from triggerer.abc import BaseEventTrigger
from triggerer.isolation import Isolation, IsolationSettings

ROOT = Path(__file__).parents[2]
GRACE_S = 1.0


class Isolate(Protocol):
    """Makes a trigger that runs where the test says."""

    def __call__(
        self, cls: type[BaseEventTrigger], called: str = ..., /, **kwargs: Any
    ) -> BaseEventTrigger: ...


@pytest.fixture
def upstream(request: pytest.FixtureRequest) -> Upstream:
    return Upstream(request.node.name)


@pytest.fixture
def isolation(monkeypatch: pytest.MonkeyPatch) -> Iterator[Isolation]:
    """An `Isolation` that the test enters. Its processes can import the tests. At the end, no isolated process or
    thread may be left.
    """
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    yield Isolation(IsolationSettings(allowed_modules=(triggers.HERE,), grace=GRACE_S))
    assert isolated_processes() == []
    deadline = time.monotonic() + 5
    while watcher_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert watcher_threads() == []


def watcher_threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name.startswith("watcher[")]


@pytest.fixture(params=["loop", "thread", "process"])
def placement(request: pytest.FixtureRequest) -> str:
    where: str = request.param
    return where


@pytest.fixture
def isolate(isolation: Isolation, placement: str) -> Isolate:
    return isolate_in(isolation, placement)


def isolate_in(isolation: Isolation, placement: str) -> Isolate:
    def make(
        cls: type[BaseEventTrigger], called: str = "one", /, **kwargs: Any
    ) -> BaseEventTrigger:
        if placement == "loop":
            return cls(**kwargs)
        assert placement in ("thread", "process")
        proxy = isolation.proxy_class(
            cls,
            placement,  # type: ignore[arg-type]
            classpath=f"{triggers.HERE}.{cls.__name__}",
            name=called,
        )
        return proxy(**kwargs)

    return make


def notes_of(notes: Path, name: str = "one") -> list[str]:
    file = notes / name
    return file.read_text().splitlines() if file.exists() else []


async def until(condition: Callable[[], object], timeout: float = 60) -> None:
    with anyio.fail_after(timeout):
        while not condition():  # noqa: ASYNC110  (another thread or process makes it true)
            await anyio.sleep(0.005)


async def settle() -> None:
    """Wait a moment, so that an unwanted event could happen."""
    for _ in range(20):
        await asyncio.sleep(0.005)


def is_here(placement: str, payload: Any) -> bool:
    """Return whether the filter that derived this payload ran at this placement."""
    return {
        "loop": payload["pid"] == os.getpid() and payload["thread"] == threading.get_ident(),
        "thread": payload["pid"] == os.getpid() and payload["thread"] != threading.get_ident(),
        "process": payload["pid"] != os.getpid(),
    }[placement]
