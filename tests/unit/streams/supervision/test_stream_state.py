"""Producers that store their position in a state, and the runtime around them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable, Sequence
from typing import Any

import anyio
import pytest

from triggerer.abc import (
    AdvanceItem,
    BaseEventTrigger,
    SharedStreamProducer,
    StreamState,
    TriggerEvent,
)
from triggerer.testing import StreamHarness

NUMBERS: list[int] = []


class Counting(SharedStreamProducer):
    """Yields the numbers that its state has not passed."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def use_state(self, state: StreamState) -> None:
        self.calls.append("use_state")
        self.state = state

    async def open_stream(self) -> AsyncIterator[tuple[int, int]]:
        self.calls.append("open_stream")
        for number in NUMBERS[self.state.value or 0 :]:
            yield number, number
        await anyio.sleep_forever()

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        done = [item.broker_payload for item in batch if item.outcome.is_clean]
        if done:
            await self.state.save(done[-1])


class CountingTrigger(BaseEventTrigger):
    made: list[Counting] = []  # noqa: RUF012  (a test's)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "tests.CountingTrigger", {}

    def shared_stream_key(self) -> Hashable:
        return "counting"

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        cls.made.append(Counting())
        return cls.made[-1]

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[int]
    ) -> AsyncIterator[TriggerEvent]:
        async for number in shared_stream:
            yield TriggerEvent(number)


@pytest.fixture(autouse=True)
def _numbers() -> None:
    NUMBERS[:] = [1, 2, 3]
    CountingTrigger.made.clear()


async def test_a_producer_is_handed_its_state_before_it_is_opened() -> None:
    async with StreamHarness() as streams:
        streams.states["counting"] = 2
        view = await streams.add(CountingTrigger())
        await streams.quiesce()
        assert [event.payload for event in view.events] == [3]
        assert CountingTrigger.made[0].calls == ["use_state", "open_stream"]
        assert streams.states == {"counting": 3}


@pytest.mark.rule("12: the broker is advanced only after the events are committed")
async def test_a_state_passes_nothing_whose_events_are_not_durable() -> None:
    async with StreamHarness(persistence="manual") as streams:
        view = await streams.add(CountingTrigger())
        await streams.quiesce()
        assert len(view.unpersisted) == 3
        assert streams.states == {}
        await streams.persist(2)
        await streams.quiesce()
        assert streams.states == {"counting": 2}


async def test_the_next_group_of_a_stream_gets_what_the_last_one_saved() -> None:
    async with StreamHarness() as streams:
        first = await streams.add(CountingTrigger())
        await streams.quiesce()
        await streams.remove(first)
        await streams.quiesce()
        NUMBERS.append(4)
        second = await streams.add(CountingTrigger())
        await streams.quiesce()
        assert [event.payload for event in second.events] == [4]
        assert len(CountingTrigger.made) == 2


class Unserialisable(Counting):
    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        await self.state.save(object())


async def test_a_state_that_is_no_json_ends_the_group_loudly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        CountingTrigger, "create_shared_stream_producer", classmethod(lambda *_: Unserialisable())
    )
    async with StreamHarness() as streams:
        view = await streams.add(CountingTrigger())
        await streams.quiesce()
        assert "is not JSON" in str(view.error)
