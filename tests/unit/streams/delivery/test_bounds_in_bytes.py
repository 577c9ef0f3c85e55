"""Bounds in bytes of outstanding messages, for producers that tell the sizes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from random import Random
from typing import Any, ClassVar

import anyio
import pytest

from tests.unit.streams.sources import (
    FromSource,
    PausesLanes,
    Raw,
    Source,
    SourceProducer,
    bounds,
    confirm_everything,
    group_of,
)
from tests.unit.streams.supervised import supervised
from triggerer.abc import TriggerEvent
from triggerer.streams import MemberState


class TellsSizes(PausesLanes):
    def get_size(self, broker_payload: Raw) -> int:
        self.source.asked.append((broker_payload.lane, broker_payload.number))
        return broker_payload.size_bytes


class TellsSizesOfWholeStream(SourceProducer):
    get_size = TellsSizes.get_size  # type: ignore[assignment]


class FromSized(FromSource):
    producer = TellsSizes


class FromSizedWholeStream(FromSource):
    producer = TellsSizesOfWholeStream


class Gated(FromSized):
    """Reads a hundred messages once the gate is open, and derives nothing."""

    gate: ClassVar[anyio.Event]

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[Raw]
    ) -> AsyncIterator[TriggerEvent]:
        await self.gate.wait()
        async for raw in shared_stream:
            if raw.number == 100:
                await anyio.sleep_forever()
                yield TriggerEvent({})


@pytest.mark.parametrize("kind", [FromSized, FromSizedWholeStream])
async def test_at_a_groups_bound_in_bytes_the_poll_pauses_until_half_of_it_is_advanced(
    source: Source, kind: type[FromSource]
) -> None:
    source.each = 100
    async with supervised(bounds(max_outstanding_bytes=1_000)) as service:
        service.store.is_automatic = False
        service.host(kind(source.name))
        source.publish(100)
        await service.settle_down()
        assert len(source.pulled) == 11, "the poll had pulled one more when it saw the bound"
        assert group_of(service).outstanding == 10
        assert group_of(service).state.lanes.outstanding_bytes == 1_000
        assert source.calls == [("pause", None)]
        waiting, service.store.waiting = service.store.waiting, []
        for event in waiting[:4]:
            event.complete(None)
        await service.settle_down()
        assert len(source.pulled) == 11, "more than half is outstanding"
        waiting[4].complete(None)
        await service.settle_down()
        assert len(source.pulled) == 16
        for event in waiting[5:]:
            event.complete(None)
        await service.settle_down()
        await confirm_everything(service)
        assert source.advanced == {0: list(range(100))}
        assert source.asked == [(0, number) for number in range(100)], "once for each"
        calls = [what for what, _ in source.calls]
        assert calls == ["pause", "resume"] * (len(calls) // 2)
        assert group_of(service).state.lanes.outstanding_bytes == 0


async def test_a_lane_at_its_bound_in_bytes_pauses_alone_and_the_others_go_on(
    source: Source,
) -> None:
    source.each = 100
    async with supervised(bounds(max_outstanding_bytes_per_lane=400)) as service:
        service.store.is_automatic = False
        service.host(FromSized(source.name))
        source.turns = 5
        source.publish(20, lane=0)
        source.publish(50, lane=1)
        await service.settle_down()
        assert source.calls == [("pause_lane", 0)]
        assert source.count(1) == 50
        assert len(service.store.waiting) == 4
        service.store.waiting.pop(0).complete(None)
        await service.settle_down()
        assert source.calls == [("pause_lane", 0)], "more than half of the bound is outstanding"
        service.store.waiting.pop(0).complete(None)
        await service.settle_down()
        assert source.calls == [("pause_lane", 0), ("resume_lane", 0), ("pause_lane", 0)]
        await confirm_everything(service)
        assert source.advanced[0] == list(range(20))
        calls = [what for what, _ in source.calls]
        assert calls == ["pause_lane", "resume_lane"] * (len(calls) // 2)
        assert group_of(service).state.lanes.full == {}


@pytest.mark.parametrize("kind", [FromSized, FromSizedWholeStream])
async def test_a_message_that_alone_is_larger_than_the_bounds_passes(
    source: Source, kind: type[FromSource]
) -> None:
    settings = bounds(max_outstanding_bytes=100, max_outstanding_bytes_per_lane=50)
    source.each = 10
    source.sizes = {(0, number): 5_000 for number in (0, 3, 4, 19)}
    async with supervised(settings) as service:
        service.store.is_automatic = False
        service.host(kind(source.name))
        source.publish(20, lane=0)
        await service.settle_down()
        assert len(service.store.waiting) == 1, "no other message is broadcast beside the large one"
        for _ in range(20):
            lanes = group_of(service).state.lanes
            if any(entry.size_bytes > 100 for entry in group_of(service).state.ledger.entries):
                assert lanes.outstanding_bytes < 5_000 + 50, "the large message filled the lane"
            await confirm_everything(service)
        assert source.advanced == {0: list(range(20))}
        assert group_of(service).state.lanes.full == {}


async def test_however_messages_are_sized_the_bounds_in_bytes_hold_and_all_are_advanced(
    source: Source,
) -> None:
    largest = 700
    random = Random(7)
    for lane in range(3):
        for number in range(300):
            source.sizes[lane, number] = random.choice([0, 1, 10, 100, largest])
    settings = bounds(
        group=100, lane=40, max_outstanding_bytes=2_000, max_outstanding_bytes_per_lane=1_000
    )
    async with supervised(settings) as service:
        service.store.is_automatic = False
        service.host(FromSized(source.name), FromSized(source.name))
        for lane in range(3):
            source.publish(300, lane)
        while any(source.count(lane) < 300 for lane in range(3)):
            await service.settle_down()
            lanes = group_of(service).state.lanes
            assert lanes.outstanding_bytes < 2_000 + largest
            assert all(lane.outstanding_bytes < 1_000 + largest for lane in lanes)
            assert lanes.outstanding_bytes == sum(lane.outstanding_bytes for lane in lanes)
            for _ in range(random.randint(1, 9)):
                if service.store.waiting:
                    service.store.waiting.pop(0).complete(None)
        await confirm_everything(service)
        assert source.advanced == {lane: list(range(300)) for lane in range(3)}


async def test_large_messages_that_all_have_read_soon_leave_the_memory(source: Source) -> None:
    # The ledger keeps messages that all filters have read, until these are 512, half of its list, or 1 MiB in size.
    # Here all filters read 100 of 400 messages. These 100 messages are large enough for the last condition only.
    source.each = 1024 * 1024
    Gated.gate = anyio.Event()
    settings = bounds(max_outstanding_bytes=10**9, max_outstanding_bytes_per_lane=10**9)
    async with supervised(settings) as service:
        service.host(Gated(source.name))
        source.publish(400)
        await service.settle_down()
        assert len(Raw.alive) == 400
        Gated.gate.set()
        await service.settle_down()
        assert source.count() == 100
        assert len(Raw.alive) <= 301


async def test_sizes_are_asked_for_only_where_the_class_tells_them(source: Source) -> None:
    source.each = 10**12
    async with supervised(bounds()) as service:
        service.host(FromSource(source.name))
        source.publish(50)
        await service.settle_down()
        assert source.count() == 50
        assert (source.asked, source.calls) == ([], [])


@pytest.mark.parametrize("answer", [-1, None])
async def test_a_size_that_is_none_ends_the_group_loudly(source: Source, answer: Any) -> None:
    source.each = answer
    async with supervised(bounds()) as service:
        (one,) = service.host(FromSized(source.name))
        source.publish(1)
        await service.settle_down()
        assert one.state is MemberState.FAILING
        assert source.count() == 0
