"""Leaving: a watcher that was deleted, one whose arguments changed, a service that stops (contract, rule 9)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from tests.unit.streams.scene import Scene, Sink, hosting
from tests.unit.streams.streams import Acking, Alone, Fast, Upstream, Watching
from tests.unit.streams.supervised import Service, forever, supervised
from triggerer.abc import SharedStreamProducer, TriggerEvent
from triggerer.errors import StoreUnavailable
from triggerer.streams import MemberState, RuntimeSettings


class YieldsThenWaits(Acking):
    """Derives an event from each message. The trigger named "leaves" then keeps its first message open forever."""

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[Any]
    ) -> AsyncIterator[TriggerEvent]:
        async for event in shared_stream:
            yield TriggerEvent({"value": event})
            if self.name == "leaves":
                await anyio.sleep_forever()


@pytest.mark.rule(
    "9: a deleted watcher acks its open message, and fails every message that it has not pulled"
)
@pytest.mark.parametrize(
    ("answer", "outcome"), [(None, (1, 0, 0)), (StoreUnavailable("gone"), (0, 1, 0))]
)
async def test_pulled_messages_of_a_deleted_watcher_are_accepted_once_durable_and_the_rest_fails(
    upstream: Upstream, answer: Exception | None, outcome: tuple[int, int, int]
) -> None:
    async with supervised() as service:
        service.store.is_automatic = False
        leaves, _ = service.host(
            YieldsThenWaits(upstream.name, "leaves"), YieldsThenWaits(upstream.name, "stays")
        )
        upstream.put("pulled", "queued")
        await service.settle_down()
        mine, *others = service.store.waiting
        for event in others:
            event.complete(None)
        service.store.waiting = []
        service.manager.remove(leaves, on_purpose=True)
        upstream.put("after")
        await service.settle_down()
        service.store.complete()
        await service.settle_down()
        # The head of the lane waits for the store.
        assert upstream.outcomes() == {}
        mine.complete(answer)
        await service.settle_down()
        acked, failed, _ = outcome
        assert upstream.outcomes() == {
            "pulled": (1 + acked, failed, 0),
            "queued": (1, 1, 0),
            "after": (1, 0, 0),
        }


@pytest.mark.rule(
    "9: where rule 18 applies, a deleted watcher acks what it has not pulled once a sibling resolved it"
)
@pytest.mark.parametrize(
    ("does", "outcome"), [("takes", (2, 0, 0)), ("rejects", (1, 0, 1)), ("fails", (0, 2, 0))]
)
async def test_a_message_that_a_deleted_watcher_never_pulled_is_acked_if_a_sibling_resolved_it(
    any_scene: Scene, does: str, outcome: tuple[int, int, int]
) -> None:
    scene, sink = any_scene, Sink()
    scene.gates["leaves", "pulled"] = anyio.Event()
    if does == "rejects":
        scene.rejects = lambda event: event == "queued"
    elif does == "fails":
        scene.fails["stays"] = lambda event: event == "queued"
    async with hosting(scene, sink, "leaves", "stays") as (manager, leaves, _):
        scene.publish("pulled", "queued")
        await sink.until(lambda: {("leaves", "pulled"), ("stays", "queued")} <= set(scene.opened))
        assert scene.advanced == []
        manager.remove(leaves, on_purpose=True)
        await sink.until(lambda: len(scene.advanced) >= 2)
        assert scene.advanced[:2] == [("pulled", (2, 0, 0)), ("queued", outcome)]
        scene.fails.clear()
        await sink.until(lambda: scene.broker.committed() == 2)
    assert not sink.positions
    assert not sink.stored_ever


@pytest.mark.rule("9: a change of a watcher's arguments resolves no message")
async def test_unresolved_messages_of_a_replaced_trigger_are_redelivered_and_never_accepted(
    upstream: Upstream,
) -> None:
    async with supervised() as service:
        replaced, _ = service.host(
            YieldsThenWaits(upstream.name, "leaves"), YieldsThenWaits(upstream.name, "stays")
        )
        upstream.put("open", "queued")
        await service.settle_down()
        service.manager.remove(replaced, on_purpose=False)
        service.host(YieldsThenWaits(upstream.name, "new"))
        upstream.put("after")
        await service.settle_down()
        assert upstream.outcomes() == {"open": (1, 1, 0), "queued": (1, 1, 0), "after": (2, 0, 0)}
        assert replaced.state is MemberState.ENDED


@pytest.mark.rule("9: a lost lease resolves no message")
async def test_a_stream_that_is_given_away_advances_nothing_more(upstream: Upstream) -> None:
    async with supervised() as service:
        service.store.is_automatic = False
        one, two = service.host(Acking(upstream.name, "one"), Acking(upstream.name, "two"))
        upstream.put(0)
        await service.settle_down()
        service.manager.close_stream(one.key)
        service.store.complete()
        await service.settle_down()
        assert upstream.advanced == []
        assert one.state is two.state is MemberState.ENDED
        assert upstream.closed == 1


async def test_draining_lets_what_is_in_flight_be_advanced_and_pulls_nothing_more(
    upstream: Upstream,
) -> None:
    async with supervised() as service:
        service.store.is_automatic = False
        service.host(Acking(upstream.name))
        upstream.put(0)
        await service.settle_down()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(service.manager.drain, 5)
            await service.settle_down()
            upstream.put(1, 2)
            await service.settle_down()
            assert upstream.outcomes() == {}
            service.store.complete()
            with anyio.fail_after(30):
                await service.settle_down()
        assert upstream.outcomes() == {0: (1, 0, 0)}


@pytest.mark.parametrize("kind", [Alone, Fast])
async def test_draining_waits_until_the_store_has_what_nobody_would_deliver_again(
    upstream: Upstream, kind: type[Acking]
) -> None:
    async with supervised() as service:
        service.store.is_automatic = False
        service.host(kind(upstream.name))
        upstream.put(0)
        await service.settle_down()
        async with service.draining() as drained:
            assert not drained.is_set()
            upstream.put(1, 2, 3)
            await service.settle_down()
            for _ in range(3):
                service.store.complete()
                await service.settle_down()
            assert drained.is_set()
        # The awaited message may still come, but no later one is pulled.
        assert len(service.store.payloads) <= 2


async def test_draining_gives_up_when_its_time_is_over(upstream: Upstream) -> None:
    upstream.on_filter["one"] = forever
    async with supervised() as service:
        service.host(Acking(upstream.name))
        upstream.put(0)
        await service.settle_down()
        with anyio.fail_after(30):
            await service.manager.drain(0.05)
        assert upstream.advanced == []


@pytest.mark.parametrize("store_answers", [True, False])
async def test_a_group_that_ends_while_it_is_drained_is_not_waited_for_and_not_followed_by_another(
    upstream: Upstream, store_answers: bool
) -> None:
    async with supervised() as service:
        service.store.is_automatic = False
        service.host(Acking(upstream.name))
        upstream.put(0)
        await service.settle_down()
        async with service.draining() as drained:
            upstream.fail(OSError("gone"))
            await service.pass_time(120)
            assert not drained.is_set()
            if store_answers:
                # The derived event is durable now. The group has ended, so no advance will follow, and the drain ends.
                service.store.complete()
                await service.settle_down()
                assert drained.is_set()
        assert len(upstream.producers) == 1
        assert upstream.advanced == []


async def test_the_fast_path_ends_when_its_last_member_leaves_a_long_queue_behind(
    upstream: Upstream,
) -> None:
    upstream.on_filter["one"] = forever
    async with supervised() as service:
        (one,) = service.host(Fast(upstream.name, "one"))
        # These are more messages than the group releases in one turn of the event loop.
        upstream.put(*range(1000))
        await service.settle_down()
        service.manager.remove(one, on_purpose=True)
        await service.settle_down()
        assert service.manager.streams == {}


async def test_a_trigger_without_a_stream_pauses_while_the_store_is_away_whatever_its_restarts(
    upstream: Upstream,
) -> None:
    async with supervised(RuntimeSettings(max_pending=3, close_timeout=0.5)) as service:
        service.store.is_automatic = False
        service.host(Alone(upstream.name))
        upstream.put(*range(2))
        for _ in range(10):
            upstream.fail(OSError("gone"))
            upstream.put(*range(3))
            await service.pass_time(120)
        assert len(service.store.waiting) == 3
        service.store.complete()
        await service.settle_down()
        assert len(service.store.waiting) > 0


@pytest.mark.parametrize("kind", [Alone, Fast, Acking])
async def test_a_filter_waits_while_the_store_is_full_whoever_filled_it(
    upstream: Upstream, kind: type[Watching]
) -> None:
    async with supervised() as service:
        service.store.is_automatic = False
        service.store.room = 3
        service.host(kind(upstream.name))
        upstream.put(*range(10))
        await service.settle_down()
        assert service.store.payloads == [{"value": n} for n in range(3)]
        service.store.complete()
        await service.settle_down()
        assert len(service.store.payloads) == 6
        while service.store.waiting:
            service.store.complete()
            await service.settle_down()
        assert len(service.store.payloads) == 10


async def test_a_lost_lease_ends_a_stream_that_only_waits_for_what_its_last_watcher_owes(
    upstream: Upstream,
) -> None:
    """If the stream continued, watchers of a later lease would join it, although its own lease is over."""
    async with supervised() as service:
        service.store.is_automatic = False
        (leaves,) = service.host(YieldsThenWaits(upstream.name, "leaves"))
        upstream.put("pulled")
        await service.settle_down()
        service.manager.remove(leaves, on_purpose=True)
        await service.settle_down()
        assert len(service.manager.streams) == 1
        service.manager.close_stream_known_as("stream")
        await service.settle_down()
        assert service.manager.streams == {}
        service.store.complete()
        await service.settle_down()
        assert upstream.outcomes() == {}
        assert upstream.closed == 1


@pytest.mark.parametrize("on_purpose", [True, False])
async def test_a_subscriber_that_leaves_in_the_tick_of_its_failure_is_owed_nothing(
    upstream: Upstream, on_purpose: bool
) -> None:
    """In an earlier version, the subscriber then counted as absent forever, and all later messages were redelivered."""
    settings = RuntimeSettings(ack_timeout=30.0)
    async with supervised(settings) as service:
        leaves, _ = service.host(
            YieldsThenWaits(upstream.name, "leaves"), YieldsThenWaits(upstream.name, "stays")
        )
        upstream.put("open")
        await service.settle_down()
        service.clock.move_to(service.clock.monotonic() + 30.0)
        while leaves.subscriber is not None and leaves.subscriber.is_present:
            await anyio.lowlevel.checkpoint()
        assert not leaves.is_absent
        service.manager.remove(leaves, on_purpose=on_purpose)
        await service.settle_down()
        upstream.put("after")
        await service.settle_down()
        assert upstream.outcomes() == {"open": (1, 1, 0), "after": (1, 0, 0)}


def woken_by_an_event(service: Service, upstream: Upstream) -> None:
    upstream.put("too late")


def woken_by_the_store(service: Service, upstream: Upstream) -> None:
    service.store.complete()


class SideBySide(Acking):
    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        producer = super().create_shared_stream_producer(kwargs)
        producer.lanes_advance_side_by_side = True  # type: ignore[misc]
        return producer


@pytest.mark.rule("9: a lost lease resolves no message")
@pytest.mark.parametrize(
    ("kind", "wake"),
    [
        (Acking, woken_by_an_event),
        (Acking, woken_by_the_store),
        (SideBySide, woken_by_an_event),
        (SideBySide, woken_by_the_store),
        # The fast path advances nothing, independent of the store.
        (Fast, woken_by_an_event),
    ],
)
async def test_a_task_woken_as_the_lease_ended_neither_broadcasts_nor_advances(
    upstream: Upstream, kind: type[Acking], wake: Callable[[Service, Upstream], None]
) -> None:
    """A cancellation reaches a task only at its next wait. By then, another instance may serve the stream."""
    async with supervised() as service:
        service.store.is_automatic = False
        (one,) = service.host(kind(upstream.name))
        upstream.put(0)
        await service.settle_down()
        assert one.key is not None
        group = service.manager.streams[one.key].group
        assert group is not None
        wake(service, upstream)
        service.manager.close_stream(one.key)
        await service.settle_down()
        assert group.state.ledger.next_seq == 1
        assert upstream.advanced == []


async def test_an_advance_that_was_to_begin_as_the_lease_ended_does_not(upstream: Upstream) -> None:
    async with supervised() as service:
        service.store.is_automatic = False
        (one,) = service.host(SideBySide(upstream.name))
        upstream.put(0)
        await service.settle_down()
        service.store.complete()
        # In this turn of the event loop, the pump starts the task that advances the lane. The task begins in the next
        # turn.
        await anyio.lowlevel.checkpoint()
        assert one.key is not None
        service.manager.close_stream(one.key)
        await service.settle_down()
        assert upstream.advanced == []


async def test_fast_path_events_pulled_before_the_drain_still_reach_the_filters(
    upstream: Upstream,
) -> None:
    async with supervised() as service:
        (one,) = service.host(Fast(upstream.name))
        await service.settle_down()
        assert one.key is not None
        group = service.manager.streams[one.key].group
        assert group is not None
        # The first message wakes the poll.
        upstream.put(0, 1)
        group.stop_pulling()
        await service.settle_down()
        assert service.store.payloads == [{"value": 0}]
        group.start_pulling()
        await service.settle_down()
        assert service.store.payloads == [{"value": 0}, {"value": 1}]


async def test_a_stop_that_comes_while_the_producer_resumes_is_not_forgotten(
    upstream: Upstream,
) -> None:
    gate = anyio.Event()

    async def resume() -> None:
        await gate.wait()

    async with supervised(RuntimeSettings(max_outstanding=2, close_timeout=0.5)) as service:
        service.store.is_automatic = False
        (one,) = service.host(Acking(upstream.name))
        await service.settle_down()
        upstream.producers[0].resume = resume  # type: ignore[method-assign]
        upstream.put(*range(6))
        await service.settle_down()
        service.store.complete()
        await service.settle_down()
        assert one.key is not None
        group = service.manager.streams[one.key].group
        assert group is not None
        group.stop_pulling()
        gate.set()
        await service.settle_down()
        assert group.state.ledger.next_seq == 2


async def test_a_watcher_that_is_deleted_as_its_back_off_ends_does_not_come_back(
    upstream: Upstream,
) -> None:
    """Otherwise the watcher would be a subscriber without a filter, and block every lane until the ack timeout."""

    def fail(_: Any) -> None:
        raise ValueError("bad")

    upstream.on_filter["fails"] = fail
    async with supervised() as service:
        fails, _ = service.host(Acking(upstream.name, "fails"), Acking(upstream.name, "stays"))
        upstream.put(0)
        await service.settle_down()
        assert fails.is_absent
        assert fails.key is not None
        group = service.manager.streams[fails.key].group
        assert group is not None
        deadline = service.clock.next_deadline()
        assert deadline is not None
        # The watcher's back-off is over, but its task has not had its turn.
        service.clock.move_to(deadline)
        service.manager.remove(fails, on_purpose=True)
        await service.settle_down()
        assert len(group.subscribers) == 1
        del upstream.on_filter["fails"]
        upstream.put(1)
        await service.settle_down()
        assert upstream.outcomes()[1] == (1, 0, 0)
