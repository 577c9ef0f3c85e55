"""Work under a lease stops by the instance's own clock, before anybody closes it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from tests.unit.streams.scene import Scene, Sink, hosting
from tests.unit.streams.streams import Acking, AckingSideBySide, Fast, Upstream, Watching
from tests.unit.streams.supervised import supervised
from triggerer.domain.watchers.lane_positions import LanePosition
from triggerer.processes.own_lease import OwnLease

pytestmark = pytest.mark.rule(
    "15: an owner stops by its own clock, before another instance may begin"
)


class Clock:
    """Shows what a test sets; the lease holds until 11."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lease(clock: Clock) -> OwnLease:
    lease = OwnLease(timedelta(seconds=12), margin=1 / 12, clock=clock)
    lease.extend(0.0)
    return lease


@pytest.mark.parametrize("mode", [Acking, AckingSideBySide])
async def test_nothing_is_broadcast_or_advanced_when_it_is_over(
    mode: type[Watching], upstream: Upstream, lease: OwnLease, clock: Clock
) -> None:
    async with supervised(lease=lease) as service:
        service.host(mode(upstream.name))
        upstream.put(1)
        await service.settle_down()
        assert upstream.outcomes() == {1: (1, 0, 0)}
        service.store.is_automatic = False
        upstream.put(2)
        await service.settle_down()
        clock.now = 11.0
        # The event of 2 becomes durable only after the lease, so 2 is not advanced. 3 reaches no filter.
        service.store.complete()
        upstream.put(3)
        await service.settle_down()
        assert upstream.outcomes() == {1: (1, 0, 0)}
        assert service.store.payloads == [{"value": 1}, {"value": 2}]


async def test_on_the_fast_path_nothing_is_broadcast_when_it_is_over(
    upstream: Upstream, lease: OwnLease, clock: Clock
) -> None:
    async with supervised(lease=lease) as service:
        service.host(Fast(upstream.name))
        upstream.put(1)
        await service.settle_down()
        clock.now = 11.0
        upstream.put(2)
        await service.settle_down()
        assert service.store.payloads == [{"value": 1}]


async def test_an_advance_of_many_events_stops_at_the_end_of_the_lease(
    upstream: Upstream, lease: OwnLease, clock: Clock
) -> None:

    async def pass_a_second(batch: Any) -> None:
        await anyio.lowlevel.checkpoint()
        clock.now += 1.0

    upstream.on_advance = pass_a_second
    async with supervised(lease=lease) as service:
        service.host(Acking(upstream.name))
        for lane in range(20):
            upstream.put(lane, lane=lane)
        await service.settle_down()
        assert len(upstream.advanced) == 11


async def test_no_group_is_opened_when_it_is_over(
    upstream: Upstream, lease: OwnLease, clock: Clock
) -> None:
    async with supervised(lease=lease) as service:
        service.host(Acking(upstream.name))
        await service.settle_down()
        upstream.fail(OSError("the broker hung up"))
        await service.settle_down()
        clock.now = 11.0
        await service.pass_time(60)
        assert len(upstream.producers) == 1


async def test_a_catching_up_filter_passes_no_message_whose_event_comes_after_the_lease(
    scene: Scene, lease: OwnLease, clock: Clock
) -> None:
    """The filter derives an event after the lease has expired, so the event is not stored.

    The stored position must not pass the event's message. Otherwise the next owner would skip the message.
    """
    sink = Sink()
    scene.publish("a", "b")
    scene.broker.seek(2)
    at_first = [scene.broker.identity, 0]
    stands = (LanePosition(1, "0", at_first, datetime.now(UTC)),)
    gate = scene.gates["behind", "a"] = anyio.Event()
    async with hosting(scene, sink, "behind", "well", positions=stands, lease=lease):
        await sink.until(lambda: ("behind", "a") in scene.opened)
        clock.now = 11.0
        gate.set()
        await anyio.wait_all_tasks_blocked()
        assert sink.derived(1) == []
        assert all(position == at_first for position in sink.positions.values())
    clock.now = 0.0
    async with hosting(scene, sink, "behind", "well", positions=stands):
        await sink.until(lambda: sink.derived(1) == ["a", "b"])
