"""A poll that has stopped at a bound notices every room that appears, at any moment."""

from __future__ import annotations

from collections.abc import AsyncIterator
from random import Random
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from tests.unit.streams.scene import Scene, Sink, Watching
from triggerer.abc import TriggerEvent
from triggerer.streams import Manager, RuntimeContext, RuntimeSettings


class TakingTurns(Watching):
    """Gives way to other tasks before it processes a message, as many times as its name says."""

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[Any]
    ) -> AsyncIterator[TriggerEvent]:
        async for event in shared_stream:
            for _ in range(int(self.name)):
                await checkpoint()
            yield TriggerEvent(event)


@pytest.mark.parametrize("bound", [2, 3])
@pytest.mark.parametrize("turns", range(10))
async def test_room_that_comes_while_the_poll_looks_who_is_slow_is_seen(
    turns: int, bound: int, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the stream stands still for an ack timeout."""
    monkeypatch.setattr(scene, "watcher", lambda name: TakingTurns(scene.name, name))
    sink = Sink()
    context = RuntimeContext(
        sink,
        sink,
        sink,
        settings=RuntimeSettings(max_outstanding=bound),
        restart_first=0.01,
        restart_longest=0.01,
        random=Random(1),
    )
    async with Manager(context) as manager:
        manager.add(scene.specs("0", str(turns)))
        scene.publish(*range(20))
        with anyio.fail_after(10):
            await sink.until(lambda: sink.derived(1) == sink.derived(2) == list(range(20)))
