"""Subscribers, their events and the ledger where things go wrong in an unlucky order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from tests.unit.streams.streams import Acking, Fast, Upstream
from tests.unit.streams.supervised import Service, forever, supervised
from triggerer.abc import AckTimeout, SubscriberOverflow, TriggerEvent, reject_shared_stream_event
from triggerer.errors import PluginError, RowRefused
from triggerer.streams import MemberState, RuntimeSettings
from triggerer.streams.delivery.group import Group
from triggerer.testing import StreamHarness


def group_of(service: Service) -> Group:
    (stream,) = service.manager.streams.values()
    assert stream.group is not None
    return stream.group


# Failing


async def test_an_event_refused_by_the_store_and_then_failed_by_its_filter_fails_once(
    upstream: Upstream,
) -> None:
    gate = anyio.Event()

    class FailsAfterwards(Acking):
        async def filter_shared_stream(
            self, shared_stream: AsyncIterator[Any]
        ) -> AsyncIterator[TriggerEvent]:
            async for event in shared_stream:
                yield TriggerEvent({"value": event})
                await gate.wait()
                raise RuntimeError("boom")

    async with supervised() as service:
        service.store.is_automatic = False
        service.host(FailsAfterwards(upstream.name))
        upstream.put(0)
        await service.settle_down()
        service.store.complete(RowRefused("too large"))
        gate.set()
        await service.settle_down()
        assert upstream.outcomes() == {0: (0, 1, 0)}


async def test_an_idempotency_key_that_cannot_be_had_fails_the_event_at_once(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raising(_: object, payload: Any) -> str:
        raise LookupError("no key")

    monkeypatch.setattr("tests.unit.streams.streams.Producer.get_idempotency_key", raising)
    async with StreamHarness() as streams:
        one = await streams.add(Acking(upstream.name, "one"))
        two = await streams.add(Acking(upstream.name, "two", only=[]))
        upstream.put(0)
        await streams.quiesce()
        assert isinstance(one.error, LookupError)
        assert two.error is None
        assert upstream.outcomes() == {0: (1, 1, 0)}


async def test_a_lane_that_cannot_be_had_ends_the_group(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raising(_: object, payload: Any) -> str:
        raise LookupError("no lane")

    monkeypatch.setattr("tests.unit.streams.streams.Producer.get_advance_lane", raising)
    async with StreamHarness() as streams:
        one = await streams.add(Acking(upstream.name))
        upstream.put(0)
        await streams.quiesce()
        assert isinstance(one.error, Exception)
        assert isinstance(one.error.__cause__, LookupError)
        assert streams.groups == {}
        assert upstream.advanced == []
        assert upstream.closed == 1


async def test_a_value_that_is_no_trigger_event_fails_its_filter_alone(upstream: Upstream) -> None:
    class Wrong(Acking):
        async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> Any:
            async for event in shared_stream:
                yield {"value": event}

    async with StreamHarness() as streams:
        wrong = await streams.add(Wrong(upstream.name, "wrong"))
        fine = await streams.add(Wrong(upstream.name, "other"))
        upstream.put(0)
        await streams.quiesce()
        assert isinstance(wrong.error, PluginError)
        assert "yielded dict" in str(wrong.error)
        assert isinstance(fine.error, PluginError)
        assert upstream.outcomes() == {0: (0, 2, 0)}


async def test_a_filter_that_swallows_the_end_of_its_stream_is_failed_all_the_same(
    upstream: Upstream,
) -> None:
    class Swallowing(Acking):
        async def filter_shared_stream(
            self, shared_stream: AsyncIterator[Any]
        ) -> AsyncIterator[TriggerEvent]:
            try:
                async for event in shared_stream:
                    yield TriggerEvent({"value": event})
            except AckTimeout:
                yield TriggerEvent({"value": "afterwards"})
                await anyio.sleep_forever()

    async with supervised(RuntimeSettings(ack_timeout=60, close_timeout=10)) as service:
        service.store.is_automatic = False
        (one,) = service.host(Swallowing(upstream.name))
        upstream.put(0)
        await service.settle_down()
        await service.pass_time(60)
        # The filter is not cancelled yet, because it may be finishing its work.
        assert upstream.outcomes() == {0: (0, 1, 0)}
        await service.pass_time(10)
        assert isinstance(one.error, AckTimeout)
        assert service.store.payloads == [{"value": 0}]
        await service.pass_time(2)
        assert one.state is MemberState.RUNNING
        upstream.put(1)
        await service.settle_down()
        assert service.store.payloads[1:] == [{"value": 1}]


# Cancelling


class Deaf(Acking):
    """Swallows a cancellation, and then continues, returns or raises, as its name says."""

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[Any]
    ) -> AsyncIterator[TriggerEvent]:
        async for event in shared_stream:
            try:
                if event != "free":
                    await anyio.sleep_forever()
            except asyncio.CancelledError:
                if self.name == "returns":
                    return
                if self.name == "raises":
                    raise RuntimeError("cancelled, I gather") from None
            yield TriggerEvent({"value": event})


@pytest.mark.rule(
    "a shutdown cancels a filter, and the message that it has open counts as processed"
)
@pytest.mark.parametrize("name", ["returns", "raises", "goes on"])
async def test_at_shutdown_a_cancellation_that_a_filter_swallows_resolves_nothing(
    upstream: Upstream, name: str
) -> None:
    async def shielded(_: object) -> None:
        # This advance cannot be cancelled. So the group's pump continues only after the filters have ended.
        with anyio.CancelScope(shield=True):
            await anyio.sleep(0.1)

    upstream.on_advance = shielded
    async with supervised() as service:
        (one,) = service.host(Deaf(upstream.name, name))
        upstream.put("free", lane="other")
        upstream.put(0, 1, 2)
        await service.settle_down()
        assert service.store.payloads == [{"value": "free"}]
    assert [lane for lane, _ in upstream.advanced] == ["other"]
    assert one.error is None


async def test_a_removed_watcher_whose_filter_swallows_the_cancellation_derives_nothing_more(
    upstream: Upstream,
) -> None:
    async with supervised() as service:
        (deaf, _) = service.host(Deaf(upstream.name, "goes on"), Deaf(upstream.name, "sibling"))
        upstream.put(0, 1, 2)
        await service.settle_down()
        service.manager.remove(deaf, on_purpose=True)
        await service.settle_down()
        assert service.store.payloads == []


async def test_an_advance_that_finishes_under_its_shield_is_the_last(upstream: Upstream) -> None:
    gate = anyio.Event()
    is_advancing = anyio.Event()

    async def shielded(_: object) -> None:
        is_advancing.set()
        with anyio.CancelScope(shield=True):
            await gate.wait()

    upstream.on_advance = shielded
    async with supervised() as service:
        (one,) = service.host(Acking(upstream.name))
        upstream.put(0)
        await service.settle_down()
        assert is_advancing.is_set()
        upstream.put(1, lane="other")
        await service.settle_down()
        # The lease is lost.
        service.manager.abandon(one)
        await service.settle_down()
        gate.set()
        await service.settle_down()
        assert [lane for lane, _ in upstream.advanced] == [0]


# Waking


async def test_an_event_for_an_absent_member_alone_is_advanced_at_once(upstream: Upstream) -> None:
    async with supervised(RuntimeSettings(ack_timeout=60, close_timeout=0.5)) as service:
        service.store.is_automatic = False
        service.host(Acking(upstream.name))
        upstream.put(0)
        await service.settle_down()
        # The subscriber fails while its filter waits, and the filter has not noticed yet.
        (subscriber,) = group_of(service).subscribers
        upstream.put(1, lane="other")
        group_of(service).subscribers.fail(subscriber, AckTimeout("late"))
        await service.settle_down()
        assert upstream.outcomes("other") == {1: (0, 1, 0)}
        service.store.complete()
        await service.settle_down()
        assert upstream.outcomes() == {0: (1, 0, 0)}


async def test_nobody_stays_among_the_readers_once_it_has_left(upstream: Upstream) -> None:
    async with supervised() as service:
        one, _ = service.host(Acking(upstream.name, "one"), Acking(upstream.name, "two"))
        await service.settle_down()
        group = group_of(service)
        assert len(group.state.readers) == 2
        service.manager.remove(one, on_purpose=True)
        assert len(group.state.readers) == 1


async def test_an_event_derived_after_a_rejection_never_makes_an_empty_batch(
    upstream: Upstream,
) -> None:
    """A lane is ready, and waits for another lane's advance. A late event then makes its message unready again."""
    advance, decide = anyio.Event(), anyio.Event()
    sizes: list[int] = []

    async def on_advance(batch: Any) -> None:
        sizes.append(len(batch))
        if len(sizes) == 1:
            await advance.wait()

    class Undecided(Acking):
        async def filter_shared_stream(
            self, shared_stream: AsyncIterator[Any]
        ) -> AsyncIterator[TriggerEvent]:
            async for event in shared_stream:
                if event == "busy":
                    continue
                yield TriggerEvent({"value": event})
                reject_shared_stream_event()
                await decide.wait()
                yield TriggerEvent({"value": "after all"})

    upstream.on_advance = on_advance
    async with supervised() as service:
        service.store.is_automatic = False
        service.host(Undecided(upstream.name))
        upstream.put("busy", lane="busy")
        upstream.put(0)
        await service.settle_down()
        group = group_of(service)
        group.state.ledger.release_passed()
        service.store.complete()
        assert group.state.lanes.has_ready
        decide.set()
        await service.settle_down()
        advance.set()
        await service.settle_down()
        assert sizes == [1]
        service.store.complete()
        await service.settle_down()
        assert sizes == [1, 1]
        assert upstream.outcomes() == {0: (0, 0, 1)}


# Bounds


async def test_a_joiner_is_bounded_by_its_queue_also_where_nobody_was_before(
    upstream: Upstream,
) -> None:
    async def act(event: Any) -> None:
        if event == 0:
            raise RuntimeError("boom")
        await forever()

    upstream.on_filter["one"] = act
    settings = RuntimeSettings(subscriber_queue_size=4, overflow_grace=5, close_timeout=0.5)
    async with supervised(settings) as service:
        (one,) = service.host(Acking(upstream.name))
        upstream.put(0)
        await service.settle_down()
        # The group has no subscriber when the poll looks for room. Then the member joins again.
        upstream.put(*range(1, 10))
        await service.settle_down()
        await service.pass_time(1)
        upstream.put(*range(10, 60))
        await service.settle_down()
        group = group_of(service)
        (subscriber,) = group.subscribers
        assert one.state is MemberState.RUNNING
        assert group.state.ledger.next_seq - subscriber.pulled == 4


async def test_the_grace_of_a_stuck_subscriber_is_not_extended_by_others_that_move(
    upstream: Upstream,
) -> None:
    gates = {name: anyio.Event() for name in ("a", "b", "c")}

    def gate(name: str) -> Any:
        async def act(event: Any) -> None:
            await gates[name].wait()

        return act

    for name in gates:
        upstream.on_filter[name] = gate(name)
    upstream.on_filter["stuck"] = forever
    async with StreamHarness(subscriber_queue_size=2, overflow_grace=5) as streams:
        stuck = await streams.add(Acking(upstream.name, "stuck"))
        for name in gates:
            await streams.add(Acking(upstream.name, name))
        upstream.put(*range(10))
        for name in gates:
            await streams.sleep(1.5)
            gates[name].set()
        await streams.sleep(0.6)
        assert isinstance(stuck.error, SubscriberOverflow)


async def test_subscribers_that_left_are_forgotten_once_the_store_has_answered(
    upstream: Upstream,
) -> None:
    async def act(event: Any) -> None:
        if event == 1:
            raise RuntimeError("boom")

    upstream.on_filter["bad"] = act
    async with supervised() as service:
        service.store.is_automatic = False
        service.host(Fast(upstream.name, "bad"), Fast(upstream.name, "good"))
        upstream.put(0, 1)
        await service.settle_down()
        service.store.complete()
        assert group_of(service).subscribers.departed == {}


async def test_refused_events_are_not_remembered_for_ever(upstream: Upstream) -> None:
    async with supervised() as service:
        service.store.is_automatic = False
        service.host(Acking(upstream.name))
        for n in range(50):
            upstream.put(n)
            await service.settle_down()
            service.store.complete(RowRefused("no"))
            await service.settle_down()
        assert set(upstream.outcomes().values()) == {(0, 1, 0)}
        (subscriber,) = group_of(service).subscribers
        slots = {name for one in type(subscriber).__mro__ for name in getattr(one, "__slots__", ())}
        sizes = {
            name: len(getattr(subscriber, name))
            for name in slots
            if isinstance(getattr(subscriber, name), set)
        }
        assert not any(sizes.values())


@pytest.mark.rule("8: the queues of subscribers are bounded on the fast path too")
async def test_the_fast_path_keeps_no_event_that_everybody_has_read(upstream: Upstream) -> None:
    upstream.on_filter["stuck"] = forever
    settings = RuntimeSettings(subscriber_queue_size=10, overflow_grace=5, close_timeout=0.5)
    async with supervised(settings) as service:
        service.host(Fast(upstream.name, "one"))
        for _ in range(20):
            upstream.put(*range(100))
            await service.settle_down()
        group = group_of(service)
        assert group.state.ledger.events == []
        assert group.outstanding == 0
        service.host(Fast(upstream.name, "stuck"))
        upstream.put(*range(1000))
        await service.settle_down()
        # The one that the filter has open, and ten in its queue.
        assert len(group.state.ledger.events) == 11
        await service.pass_time(5)
        assert group.state.ledger.events == []
        assert group.subscribers.departed == {}
        assert len(service.store.payloads) == 3000


@pytest.mark.rule("S9: limits of messages in memory")
async def test_while_the_store_is_away_restarts_and_redeliveries_submit_no_more_than_the_bound(
    upstream: Upstream,
) -> None:
    """The store still has the events of messages that failed by the ack timeout."""
    settings = RuntimeSettings(ack_timeout=10, max_pending=5, close_timeout=0.5)
    async with supervised(settings) as service:
        service.store.is_automatic = False
        service.host(Acking(upstream.name))
        for _ in range(20):
            upstream.put(*range(10))
            await service.pass_time(20)
        for _ in range(20):
            upstream.fail(OSError("broker gone"))
            upstream.put(*range(10))
            await service.pass_time(120)
        # A filter waits for room only after it has yielded an event. So each start may exceed the bound by one event.
        starts = service.states.count(("one", "running"))
        assert len(service.store.waiting) <= 5 + starts
        service.store.is_automatic = True
        service.store.complete()
        await service.pass_time(120)
        upstream.put("again")
        await service.settle_down()
        assert upstream.outcomes()["again"] == (1, 0, 0)


async def test_an_event_from_before_the_first_message_hides_no_overdue_one(
    upstream: Upstream,
) -> None:
    class Greeting(Acking):
        async def filter_shared_stream(
            self, shared_stream: AsyncIterator[Any]
        ) -> AsyncIterator[TriggerEvent]:
            yield TriggerEvent({"value": "hello"})
            async for event in shared_stream:
                yield TriggerEvent({"value": event})

    async with StreamHarness(ack_timeout=60, persistence="manual") as streams:
        one = await streams.add(Greeting(upstream.name))
        upstream.put(0)
        await streams.quiesce()
        await streams.refuse()
        await streams.sleep(60)
        assert isinstance(one.error, AckTimeout)
        assert upstream.outcomes() == {0: (0, 1, 0)}
