"""Other tasks get turns of the event loop, however many filters read a stream with many fetched messages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable
from typing import Any, ClassVar

import anyio
import pytest
from anyio.lowlevel import checkpoint

from tests.unit.streams.streams import Watching
from tests.unit.streams.supervised import supervised
from triggerer.abc import SharedStreamSelector, TriggerEvent
from triggerer.streams import RuntimeSettings

EVENTS = 2_000


class AtHand(Watching):
    """A trigger of a broker that has fetched everything in advance."""

    readings: ClassVar[int] = 0

    def shared_stream_key(self) -> Hashable:
        return type(self).__name__

    @classmethod
    async def open_shared_stream(cls, kwargs: dict[str, Any]) -> AsyncIterator[Any]:
        for number in range(EVENTS):
            yield number
        await anyio.sleep_forever()

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[Any]
    ) -> AsyncIterator[TriggerEvent]:
        async for event in shared_stream:
            AtHand.readings += 1
            if event < 0:
                yield TriggerEvent(event)


class Selecting(AtHand):
    """A trigger that reads only a few of the messages."""

    def shared_stream_selector(self) -> SharedStreamSelector:
        return SharedStreamSelector("number", lambda event: event % 50, frozenset({int(self.name)}))

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[Any]
    ) -> AsyncIterator[TriggerEvent]:
        async for event in super().filter_shared_stream(shared_stream):
            yield event


async def most_in_a_turn(cls: type[AtHand], watchers: int, settings: RuntimeSettings) -> int:
    """How many events filters read, at most, from one turn of this task to its next."""
    AtHand.readings = most = 0
    expected = EVENTS if cls is Selecting else EVENTS * watchers
    async with supervised(settings) as service:
        service.host(*(cls("", str(number)) for number in range(watchers)))
        with anyio.fail_after(60):
            while AtHand.readings < expected:
                before = AtHand.readings
                await checkpoint()
                most = max(most, AtHand.readings - before)
    return most


@pytest.mark.full
@pytest.mark.parametrize("watchers", [1, 50, 400])
async def test_the_poll_gives_way_after_so_many_readings(watchers: int) -> None:
    settings = RuntimeSettings(burst=100, burst_readings=200)
    most = await most_in_a_turn(AtHand, watchers, settings)
    assert most == {1: 100, 50: 200, 400: 400}[watchers]


async def test_those_who_are_shown_what_they_select_do_not_count() -> None:
    settings = RuntimeSettings(burst=100, burst_readings=200)
    assert await most_in_a_turn(Selecting, 50, settings) == 100
