"""An isolated filter receives messages before its stream yields them. The stream must then yield exactly these.

Otherwise the filter's events would be stored under the keys of other messages.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import anyio
import pytest

from tests.unit.streams.scene import Scene, Sink, Watching, context
from triggerer.abc import TriggerEvent, current_subscriber
from triggerer.streams import Manager, MemberState
from triggerer.streams.delivery.subscriber import Subscriber


class Prefetching(Watching):
    """Reads the messages that are known ahead, as `triggerer.isolation.remote_generator` does."""

    surprises: ClassVar[list[tuple[Any, Any]]] = []
    """(the message that was sent ahead, the message that the stream yielded instead)"""

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[Any]
    ) -> AsyncIterator[TriggerEvent]:
        async for event in super().filter_shared_stream(self._watch(shared_stream)):
            yield event

    async def _watch(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[Any]:
        subscriber: Any = current_subscriber.get()
        ahead: list[Any] = []
        async for event in shared_stream:
            if ahead and (expected := ahead.pop(0)) != event:
                self.surprises.append((expected, event))
            if isinstance(subscriber, Subscriber):  # not while the watcher catches up
                ahead += subscriber.known_ahead(64)[len(ahead) :]
            yield event


class SlowSink(Sink):
    """Stores the event of watcher 2 at `a` only when `store` is called."""

    waiting: Any = None

    def submit_nowait(self, *given: Any) -> None:
        if len(given) == 5 and given[1].payload == "a" and given[2].watchers[0].watcher_id == 2:
            self.waiting = given
        else:
            super().submit_nowait(*given)

    def store(self) -> None:
        super().submit_nowait(*self.waiting)


@pytest.mark.parametrize("is_queue", [True, False], ids=["queue", "log"])
async def test_a_message_that_was_sent_ahead_is_yielded_even_if_its_lane_is_redelivered(
    scene: Scene, is_queue: bool
) -> None:
    """In an earlier version, the stream skipped the message, and yielded a later message instead."""
    Prefetching.surprises.clear()
    scene.is_queue = is_queue
    sink = SlowSink()
    first, second = scene.specs("one", "two")
    one = replace(first, make=partial(Prefetching, **first.kwargs))
    failed: list[str] = []
    refused: list[int] = []

    def fails_once(event: str) -> bool:
        if event != "a" or failed:
            return False
        failed.append(event)
        return True

    def refuses_once(watcher_id: int, payload: str) -> bool:
        if payload != "p5" or watcher_id in refused:
            return False
        refused.append(watcher_id)
        return True

    scene.fails["one"] = fails_once
    scene.gates["one", "p6"] = anyio.Event()
    scene.gates["one", "p5"] = anyio.Event()
    sink.refuses = refuses_once
    async with Manager(context(sink)) as manager:
        rejoining, _ = manager.add([one, second])
        scene.publish("a")
        # `one` has failed at `a`, which stays outstanding. So `one` rejoins as a filter that was absent.
        await sink.until(lambda: sink.waiting is not None and failed == ["a"])
        await sink.until(lambda: rejoining.state is MemberState.RUNNING)
        scene.publish("p5", "p6", "p7", lane="other")
        await sink.until(lambda: ("one", "p5") in scene.opened)
        # The store refuses the events of `p5`, so the broker redelivers this lane. By then the filter has `p7`.
        scene.gates["one", "p5"].set()
        await sink.until(lambda: ("one", "p6") in scene.opened and sorted(refused) == [1, 2])
        await sink.until(lambda: scene.opened.count(("two", "p5")) >= 2)
        scene.gates["one", "p6"].set()
        sink.store()
        everything = ["a", "p5", "p6", "p7"]
        await sink.until(lambda: sorted(sink.derived(1)) == sorted(sink.derived(2)) == everything)
        await sink.until(lambda: scene.broker.committed(lane="other") == 3)
    assert Prefetching.surprises == []
