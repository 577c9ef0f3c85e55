"""Triggers with a bookmark under the runtime: the values that they may yield, and when they continue."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, ClassVar

import pytest

from triggerer.abc import BaseEventTrigger, TriggerEvent
from triggerer.domain.events import EventSource, Fence, WatcherRef
from triggerer.domain.watchers.bookmarks import Bookmark, BookmarkChange
from triggerer.domain.watchers.guarantees import Guarantee, guarantee_of
from triggerer.errors import PluginError
from triggerer.isolation import Isolation, IsolationSettings
from triggerer.streams.pending_limit import PendingLimit
from triggerer.streams.supervision.bookmark_runner import run_from_bookmark
from triggerer.testing import StreamHarness


class Yielding(BaseEventTrigger):
    """Yields what a test tells it to."""

    batches: ClassVar[list[Any]] = []
    reached: ClassVar[list[Any]] = []

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "tests.Yielding", {}

    async def run_from(self, bookmark: Any) -> AsyncIterator[Any]:
        Yielding.reached.append(bookmark)
        for batch in Yielding.batches:
            yield batch
            Yielding.reached.append(batch)


@pytest.fixture(autouse=True)
def nothing_yet() -> None:
    Yielding.batches, Yielding.reached = [], []


async def test_it_goes_on_only_after_its_bookmark_is_durable() -> None:
    Yielding.batches = [([TriggerEvent(1)], 1), ([], 2)]
    async with StreamHarness(persistence="manual") as streams:
        one = await streams.add(Yielding())
        await streams.quiesce()
        assert Yielding.reached == [None]
        assert [event.payload for event in one.unpersisted] == [1]
        await streams.persist()
        await streams.quiesce()
        assert streams.bookmarks == {1: 1}
        await streams.persist()
        await streams.quiesce()
        assert streams.bookmarks == {1: 2}
        assert [event.payload for event in one.events] == [1]


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        (TriggerEvent(1), "not a list of TriggerEvents and a bookmark"),
        (([1], 1), "not a list of TriggerEvents and a bookmark"),
        (([TriggerEvent(n) for n in range(1001)], 1), "1001 events with one bookmark"),
        (([], {1, 2}), "a bookmark is not JSON"),
        (([], "x" * 2**20), "a bookmark has 1048578 bytes"),
    ],
)
async def test_what_it_may_not_yield_is_its_error(batch: Any, said: str) -> None:
    Yielding.batches = [batch]
    async with StreamHarness() as streams:
        one = await streams.add(Yielding())
        await streams.quiesce()
        assert isinstance(one.error, PluginError)
        assert said in str(one.error)
        assert (one.events, streams.bookmarks) == ([], {})


class Hostile:
    """A store that cannot encode any change, because the code of a payload raises."""

    async def load(self, fence: Fence, watcher_id: int, classpath: str) -> Bookmark:
        return Bookmark(None, None)

    def submit_nowait(self, change: BookmarkChange) -> None:
        raise RuntimeError("hostile")


@pytest.mark.parametrize("value", [1, {1, 2}])
async def test_what_was_not_submitted_is_not_pending(value: Any) -> None:
    Yielding.batches = [([TriggerEvent(1)], value)]
    pending = PendingLimit(1)
    with pytest.raises((PluginError, RuntimeError), match=r"not JSON|hostile"):
        await run_from_bookmark(
            Yielding(),
            name="one",
            source=EventSource((WatcherRef(1, 1),), Fence("stream", "me", 1)),
            store=Hostile(),
            pending=pending,
        )
    assert pending.count == 0


async def test_it_promises_effectively_once() -> None:
    facts = await Yielding().describe_delivery(ask=False)
    promised = guarantee_of(facts, ack_timeout=timedelta(seconds=300))
    assert promised.guarantee is Guarantee.EFFECTIVELY_ONCE


async def test_it_cannot_be_isolated() -> None:
    isolation = Isolation(IsolationSettings({}))
    with pytest.raises(PluginError, match="cannot be isolated"):
        isolation.proxy_class(Yielding, "thread", classpath="tests.Yielding", name="one")
