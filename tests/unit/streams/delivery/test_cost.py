"""The memory that an event costs, and the shortcuts that make the runtime fast."""

from __future__ import annotations

import gc
import sys
import weakref

import anyio
import anyio.lowlevel

from tests.unit.streams.streams import Acking, Upstream
from tests.unit.streams.supervised import supervised
from triggerer.abc import AckTimeout, TriggerEvent
from triggerer.domain.events import EventSource, HasPayload, PendingEvent
from triggerer.streams import RuntimeSettings
from triggerer.streams.delivery.lanes import Lanes
from triggerer.streams.delivery.ledger import Ledger, LedgerMember
from triggerer.streams.loop_tick import LoopTick
from triggerer.testing import StreamHarness


class Remembered(dict[str, int]):
    """A payload whose lifetime a test can observe."""

    __slots__ = ("__weakref__",)


class TwoOfEach(Acking):
    async def filter_shared_stream(self, shared_stream):  # type: ignore[no-untyped-def]
        async for event in shared_stream:
            yield TriggerEvent(Remembered(value=event, half=0))
            yield TriggerEvent(Remembered(value=event, half=1))


# Memory while the store is slow


async def test_an_unconfirmed_event_takes_56_bytes_and_nobody_keeps_its_payload(
    upstream: Upstream,
) -> None:
    async with supervised() as service:
        service.store.is_automatic = False
        kept: list[weakref.ref[Remembered]] = []
        ordinals: list[int] = []
        submit = service.store.submit_nowait

        def watch(
            event: PendingEvent,
            yielded: HasPayload,
            source: EventSource,
            key: str | None,
            ordinal: int,
        ) -> None:
            kept.append(weakref.ref(yielded.payload))
            ordinals.append(ordinal)
            submit(event, TriggerEvent(None), source, key, ordinal)

        service.store.submit_nowait = watch  # type: ignore[method-assign]
        service.host(TwoOfEach(upstream.name))
        upstream.put(0, 1)
        await service.settle_down()
        assert len(service.store.waiting) == 4
        gc.collect()
        # The filter's frame still refers to the last payload.
        assert [event() for event in kept[:-1]] == [None] * 3
        assert ordinals == [0, 1, 0, 1]
        assert {sys.getsizeof(one) for one in service.store.waiting} == {56}
        service.store.complete()
        await service.settle_down()
        assert upstream.outcomes() == {0: (1, 0, 0), 1: (1, 0, 0)}


async def test_events_completed_in_any_order_leave_the_oldest_one_to_time_out(
    upstream: Upstream,
) -> None:
    async with supervised(RuntimeSettings(ack_timeout=10, close_timeout=0.5)) as service:
        service.store.is_automatic = False
        (one,) = service.host(Acking(upstream.name))
        upstream.put(0, 1, 2, 3)
        await service.settle_down()
        waiting, service.store.waiting = service.store.waiting, []
        for number in (1, 3, 0):
            waiting[number].complete(None)
        assert one.subscriber is not None
        assert one.subscriber.oldest_pending is waiting[2]
        await service.settle_down()
        assert set(upstream.outcomes()) == {0, 1}
        await service.pass_time(10)
        assert isinstance(one.error, AckTimeout)
        assert upstream.outcomes()[2] == (0, 1, 0)
        assert upstream.outcomes()[3] == (1, 0, 0)
        # The store answers after all: nothing counts twice.
        waiting[2].complete(None)
        await service.settle_down()
        assert len(upstream.outcomes()) == 4


# Members


def test_members_that_are_idle_and_active_in_turns_beside_a_stuck_one_leave_nothing_behind() -> (
    None
):
    ledger = Ledger(None)
    stuck, *others = [LedgerMember() for _ in range(4)]
    for member in (stuck, *others):
        ledger.join(member, was_absent=False)
    for number in range(1_000):
        ledger.broadcast(number)
        for member in others:
            if number:
                ledger.mark_active(member, number)
            member.done = number + 1
            ledger.release_passed()
            ledger.mark_idle(member)
    assert ledger.lowest() == 0
    assert len(ledger._heap) < 50
    stuck.done = 1_000
    ledger.release_passed()
    assert ledger.events == []


# Lanes


def test_few_of_the_lanes_without_events_are_remembered() -> None:
    lanes = Lanes()
    ledger = Ledger(lanes)
    member = LedgerMember()
    ledger.join(member, was_absent=False)
    for key in range(1_000):
        ledger.broadcast_in_lane(key, key, key, 0.0)
    assert len(list(lanes)) == 1_000
    member.done = 1_000
    ledger.release_passed()
    assert [item.broker_payload for batch in lanes.batches(10) for item in batch] == list(
        range(1_000)
    )
    assert lanes.outstanding == 0
    assert len(list(lanes)) <= 128


async def test_the_events_of_an_advance_are_outstanding_until_it_has_returned(
    upstream: Upstream,
) -> None:
    gate = upstream.hold_advances()
    async with StreamHarness() as streams:
        await streams.add(Acking(upstream.name))
        upstream.put(0, 1)
        upstream.put(2, lane=1)
        await streams.quiesce()
        (view,) = streams.groups.values()
        assert (view.outstanding, view.lanes) == (3, {0: 2, 1: 1})
        gate.set()
        await streams.quiesce()
        (view,) = streams.groups.values()
        assert (view.outstanding, view.lanes) == (0, {})


async def test_draining_waits_for_the_advance_that_is_under_way(upstream: Upstream) -> None:
    gate = upstream.hold_advances()
    async with supervised() as service:
        service.host(Acking(upstream.name))
        upstream.put(0)
        await service.settle_down()
        async with service.draining() as drained:
            assert not drained.is_set()
            gate.set()
            await service.settle_down()
            assert drained.is_set()
        assert upstream.outcomes() == {0: (1, 0, 0)}


# Turns


async def test_turns_tell_whether_others_ran() -> None:
    turns = LoopTick()
    assert turns.has_turned
    turns.watch()
    assert not turns.has_turned
    await anyio.lowlevel.checkpoint()
    assert turns.has_turned
    turns.watch()
    turns.watch()
    assert not turns.has_turned
    await anyio.lowlevel.checkpoint()
    assert turns.has_turned
