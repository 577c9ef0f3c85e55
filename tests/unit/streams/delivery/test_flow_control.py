"""Bounds of outstanding messages in a group and in a lane, and the producer's pauses."""

from __future__ import annotations

import asyncio
from collections import deque

import anyio
import pytest

from tests.unit.streams.sources import (
    FromSideBySide,
    FromSource,
    FromWholeStream,
    Hook,
    Raw,
    Source,
    SourceProducer,
    bounds,
    confirm_everything,
    group_of,
)
from tests.unit.streams.supervised import supervised
from triggerer.abc import SharedStreamProducer
from triggerer.errors import PluginError
from triggerer.streams import MemberState

# The group


@pytest.mark.rule(
    "8: a full queue of a subscriber pauses the poll; after the grace that subscriber fails"
)
async def test_at_a_groups_bound_the_poll_pauses_until_half_of_it_is_advanced(
    source: Source,
) -> None:
    async with supervised(bounds(group=10)) as service:
        service.store.is_automatic = False
        service.host(FromSource(source.name))
        source.publish(100)
        await service.settle_down()
        # The poll had already pulled the eleventh when it saw the bound, and then stopped pulling.
        assert len(source.pulled) == 11
        assert group_of(service).outstanding == 10
        assert source.calls == [("pause", None)]
        waiting, service.store.waiting = service.store.waiting, []
        for event in waiting[:4]:
            event.complete(None)
        await service.settle_down()
        assert len(source.pulled) == 11, "more than half is outstanding"
        waiting[4].complete(None)
        await service.settle_down()
        assert len(source.pulled) == 16
        assert source.calls == [("pause", None), ("resume", None), ("pause", None)]
        for event in waiting[5:]:
            event.complete(None)
        await service.settle_down()
        await confirm_everything(service)
        assert source.advanced == {0: list(range(100))}
        calls = [what for what, _ in source.calls]
        assert calls == ["pause", "resume"] * (len(calls) // 2)
        assert len(calls) < 50


async def test_memory_stays_flat_however_far_the_store_lags(source: Source) -> None:
    settings = bounds(group=50, lane=20, max_pending=15, subscriber_queue_size=1_000)
    async with supervised(settings) as service:
        service.store.is_automatic = False
        service.host(FromSource(source.name), FromSource(source.name))
        for lane in range(3):
            source.publish(500, lane)
        most = 0
        for _ in range(400):
            await service.settle_down()
            group = group_of(service)
            # Each start of a filter may add one to the bound of the store's backlog.
            assert len(service.store.waiting) <= settings.max_pending + 1
            assert group.outstanding <= settings.max_outstanding
            assert all(lane.outstanding <= 20 for lane in group.state.lanes)
            # The ledger drops passed messages when they are half of its list, so the list may be twice as long as the
            # bound. Five more messages may be with the producer, the poll and the filters.
            assert len(Raw.alive) <= 2 * settings.max_outstanding + 5
            most = max(most, len(Raw.alive))
            # The store confirms only one event in each round, so it stays behind.
            if service.store.waiting:
                service.store.waiting.pop(0).complete(None)
        assert most > settings.max_outstanding // 2
        await confirm_everything(service)
        assert {lane: len(done) for lane, done in source.advanced.items()} == dict.fromkeys(
            range(3), 500
        )


# Lanes


@pytest.mark.parametrize("kind", [FromSource, FromSideBySide])
async def test_a_lane_at_its_bound_pauses_alone_and_the_others_go_on(
    source: Source, kind: type[FromSource]
) -> None:
    async with supervised(bounds(lane=4)) as service:
        service.store.is_automatic = False
        service.host(kind(source.name))
        source.turns = 5
        source.publish(20, lane=0)
        source.publish(50, lane=1)
        await service.settle_down()
        assert source.calls == [("pause_lane", 0)]
        assert source.count(1) == 50
        assert len(service.store.waiting) == 4
        source.publish(50, lane=2)
        await service.settle_down()
        assert source.count(2) == 50
        waiting, service.store.waiting = service.store.waiting, []
        waiting[0].complete(None)
        await service.settle_down()
        assert source.calls == [("pause_lane", 0)], "more than half of the bound is outstanding"
        waiting[1].complete(None)
        await service.settle_down()
        assert source.calls == [("pause_lane", 0), ("resume_lane", 0), ("pause_lane", 0)]
        for event in waiting[2:]:
            event.complete(None)
        await service.settle_down()
        await confirm_everything(service)
        assert source.advanced[0] == list(range(20))
        calls = [what for what, _ in source.calls]
        assert calls == ["pause_lane", "resume_lane"] * (len(calls) // 2)
        assert group_of(service).state.lanes.full == {}


async def test_where_lanes_cannot_pause_alone_the_whole_poll_does(source: Source) -> None:
    async with supervised(bounds(lane=4)) as service:
        service.store.is_automatic = False
        service.host(FromWholeStream(source.name))
        source.publish(20, lane=0)
        source.publish(50, lane=1)
        await service.settle_down()
        assert source.calls == [("pause", None)]
        assert (len(service.store.waiting), source.count(1)) == (4, 4)
        await confirm_everything(service)
        assert source.advanced == {0: list(range(20)), 1: list(range(50))}
        calls = [what for what, _ in source.calls]
        assert calls == ["pause", "resume"] * (len(calls) // 2)


async def test_a_message_of_a_paused_lane_waits_with_the_whole_poll(
    source: Source,
) -> None:
    source.heeds = False
    async with supervised(bounds(lane=4)) as service:
        service.store.is_automatic = False
        service.host(FromSource(source.name))
        source.publish(20, lane=0)
        source.publish(20, lane=1)
        await service.settle_down()
        assert [one.outstanding for one in group_of(service).state.lanes if one.key == 0] == [4]
        # The runtime calls `pause_lane` again, because a producer forgets the pause of a lane that is reassigned.
        assert source.calls == [("pause_lane", 0), ("pause_lane", 0), ("pause", None)]
        while source.count(0) < 20:
            assert service.store.waiting
            service.store.waiting.pop(0).complete(None)
            await service.settle_down()
            assert all(lane.outstanding <= 4 for lane in group_of(service).state.lanes)
        assert source.advanced == {0: list(range(20)), 1: list(range(20))}
        assert source.calls.count(("pause", None)) == source.calls.count(("resume", None))
        # After the last pause the lane is resumed, and is not paused again.
        assert source.calls[-1] in {("resume_lane", 0), ("resume", None)}
        assert group_of(service).state.lanes.full == {}


async def test_a_lane_that_has_room_again_before_it_is_paused_is_resumed_afterwards(
    source: Source,
) -> None:
    gate = anyio.Event()
    source.hooks["pause_lane"] = gate.wait
    async with supervised(bounds(lane=4)) as service:
        service.store.is_automatic = False
        service.host(FromSource(source.name))
        source.publish(6)
        await service.settle_down()
        assert source.calls == [("pause_lane", 0)]
        await confirm_everything(service)
        assert source.count() == 4
        assert source.calls == [("pause_lane", 0)], "one at a time"
        gate.set()
        await service.settle_down()
        assert source.calls == [("pause_lane", 0), ("resume_lane", 0)]
        await confirm_everything(service)
        assert source.advanced == {0: list(range(6))}


async def test_draining_advances_what_is_outstanding_in_a_paused_lane_and_pulls_nothing_more(
    source: Source,
) -> None:
    async with supervised(bounds(lane=4)) as service:
        service.store.is_automatic = False
        service.host(FromSource(source.name))
        source.publish(20)
        await service.settle_down()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(service.manager.drain, 5)
            await service.settle_down()
            await confirm_everything(service)
            with anyio.fail_after(30):
                await service.settle_down()
        # The poll may have pulled one more message when the drain began.
        assert source.advanced == {0: [0, 1, 2, 3]}
        assert len(source.pulled) <= 5


# Hooks


async def _raise() -> None:
    raise OSError("the broker is gone")


async def _cancel_itself() -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize("error", [_raise, _cancel_itself])
@pytest.mark.parametrize("what", ["pause", "resume", "pause_lane", "resume_lane"])
async def test_a_hook_that_raises_ends_the_group_loudly(
    source: Source, what: str, error: Hook
) -> None:
    source.hooks[what] = error
    settings = bounds(lane=4) if what.endswith("lane") else bounds(group=4)
    async with supervised(settings) as service:
        service.store.is_automatic = False
        (one,) = service.host(FromSource(source.name))
        source.publish(20)
        await service.settle_down()
        service.store.complete()
        await service.settle_down()
        assert one.state is MemberState.FAILING
        assert source.closed == 1
        cause = one.error.__cause__ if one.error is not None else None
        assert isinstance(cause, OSError if error is _raise else PluginError)
        # The confirmed messages are advanced, and no later one.
        assert source.count() in {0, 4}
        del source.hooks[what]
        await service.pass_time(5)
        assert one.state is MemberState.RUNNING
        await confirm_everything(service)
        assert source.left == {0: deque()}


async def test_a_producer_without_hooks_is_bounded_all_the_same(source: Source) -> None:
    class Bare(SourceProducer):
        pause = SharedStreamProducer.pause
        resume = SharedStreamProducer.resume

    class FromBare(FromSource):
        producer = Bare

    async with supervised(bounds(lane=4)) as service:
        service.store.is_automatic = False
        service.host(FromBare(source.name))
        source.publish(20)
        await service.settle_down()
        assert len(source.pulled) == 5
        await confirm_everything(service)
        assert source.advanced == {0: list(range(20))}
