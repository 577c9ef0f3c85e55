"""Reports of a call that takes longer for some lanes than for others."""

from __future__ import annotations

from collections.abc import Iterable

import anyio
import pytest

from triggerer.pluginkit import reporting as module
from triggerer.pluginkit.reporting import reporting


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_EVERY_S", 0.02)


async def test_what_is_done_meanwhile_is_told_and_nothing_after_the_end() -> None:
    done = [1, 2]
    told: list[list[int]] = []
    has_told = anyio.Event()

    def take() -> list[int]:
        nonlocal done
        taken, done = done, []
        return taken

    def report(places: Iterable[int]) -> None:
        nonlocal has_told
        told.append(list(places))
        has_told.set()
        has_told = anyio.Event()

    with anyio.fail_after(5), reporting(report, take):
        await has_told.wait()
        done = [0]
        await has_told.wait()
    done = [3]
    await anyio.sleep(0.1)
    assert told == [[1, 2], [0]]


async def test_a_call_that_is_soon_over_tells_nothing() -> None:
    def fail(_: object = None) -> list[int]:
        raise AssertionError

    with reporting(fail, fail):
        await anyio.lowlevel.checkpoint()
    await anyio.sleep(0.05)
