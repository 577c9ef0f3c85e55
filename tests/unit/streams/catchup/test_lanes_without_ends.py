"""A log whose producer does not report the ends of its lanes, or reports wrong ends (contract, rule 18)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable, Mapping
from datetime import datetime
from typing import Any, ClassVar

import anyio
import pytest

from triggerer.abc import BaseEventTrigger, SharedStreamProducer, TriggerEvent
from triggerer.errors import ConfigurationError
from triggerer.testing import HostedView, InMemoryBroker, InMemoryProducer, StreamHarness


class WithoutEnds(InMemoryProducer):
    """A producer that can read a lane again, but cannot tell where its lanes end."""

    find_positions = SharedStreamProducer.find_positions


class WithWrongEnds(InMemoryProducer):
    """A producer that answers every time with the first positions of its lanes."""

    async def find_positions(self, start: datetime | None) -> Mapping[Hashable, list[Any]]:
        return await super().find_positions(None)


class FromBroker(BaseEventTrigger):
    producer: ClassVar[type[InMemoryProducer]] = WithoutEnds
    broker: ClassVar[InMemoryBroker]
    refused: ClassVar[set[Any]]

    def __init__(self, name: str) -> None:
        self.name = name

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "tests.FromBroker", {"name": self.name}

    def shared_stream_key(self) -> Hashable:
        return "broker"

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        return cls.producer(cls.broker)

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[Any]
    ) -> AsyncIterator[TriggerEvent]:
        async for value in shared_stream:
            if self.name == "sick" and value in self.refused:
                raise ValueError(value)
            yield TriggerEvent(value)


def values(view: HostedView) -> list[Any]:
    return [event.payload for event in view.events]


@pytest.mark.rule("18: after catch-up a watcher goes live without a gap")
@pytest.mark.parametrize("producer", [WithoutEnds, WithWrongEnds, InMemoryProducer])
async def test_it_gets_all_it_has_missed_and_goes_on_live_whatever_is_said_of_the_ends(
    producer: type[InMemoryProducer], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, refused = InMemoryBroker(), {"a2"}
    monkeypatch.setattr(FromBroker, "producer", producer)
    monkeypatch.setattr(FromBroker, "broker", broker, raising=False)
    monkeypatch.setattr(FromBroker, "refused", refused, raising=False)
    async with StreamHarness(catch_up=True) as streams:
        sick = await streams.add(FromBroker("sick"))
        well = await streams.add(FromBroker("well"))
        broker.publish("a1", "a2", "a3", lane="a")
        broker.publish("b1", "b2", "b3", lane="b")
        await streams.quiesce()
        assert len(values(well)) == 6
        assert set(sick.behind) == {"a", "b"}
        refused.clear()
        await streams.restart(sick)
        for _ in range(3):
            await streams.sleep(1)
        # Nothing has been broadcast since.
        assert (sick.behind, sick.error) == ({}, None)
        broker.publish("a4", lane="a")
        broker.publish("b4", lane="b")
        await streams.quiesce()
        for lane in "ab":
            got = [one for one in values(sick) if one.startswith(lane)]
            assert got == [one for one in sorted(values(well)) if one.startswith(lane)]
        assert (broker.committed("a"), broker.committed("b")) == (4, 4)


async def test_a_log_that_does_not_tell_where_its_lanes_begin_cannot_be_replayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = InMemoryBroker()
    monkeypatch.setattr(FromBroker, "broker", broker, raising=False)
    monkeypatch.setattr(FromBroker, "refused", set[Any](), raising=False)
    async with StreamHarness(catch_up=True) as streams:
        one = await streams.add(FromBroker("one"))
        broker.publish("a1")
        await streams.quiesce()
        await streams.replay(one)
        with anyio.fail_after(5):
            await streams.quiesce()
        assert isinstance(one.error, ConfigurationError)
        assert "find_positions()" in str(one.error)
        assert values(one) == ["a1"]
