"""Rules 5 to 8 of the contract, when something fails; docs/notes/rules.md lists all rules."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from tests.unit.streams.streams import (
    Acking,
    AckingSideBySide,
    Catching,
    Producer,
    Upstream,
    Watching,
)
from tests.unit.streams.supervised import Store, forever, supervised
from triggerer.abc import (
    AckTimeout,
    SharedStreamProducer,
    SubscriberOverflow,
    TriggerEvent,
    reject_shared_stream_event,
)
from triggerer.domain.events import EventSource
from triggerer.errors import BrokerUnavailable, GroupEnded, RowRefused
from triggerer.processes.own_lease import OwnLease
from triggerer.streams import RuntimeSettings
from triggerer.streams.catchup.backlogs.backlogs import Backlogs
from triggerer.streams.delivery.group import Group
from triggerer.streams.pending_limit import PendingLimit
from triggerer.testing import StreamHarness
from triggerer.testing.clock import VirtualClock


class Stepping(Acking):
    """A filter that obeys the words of `steps` at each event: "rejects", "derives", or another word to wait for `step`.

    The filter with the name "sibling" only waits for `step`.
    """

    steps = ""
    step: anyio.Event

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[Any]
    ) -> AsyncIterator[TriggerEvent]:
        async for event in shared_stream:
            if self.name == "sibling":
                await self.step.wait()
                continue
            for what in self.steps.split():
                if what == "rejects":
                    reject_shared_stream_event()
                elif what == "derives":
                    yield TriggerEvent({"value": event})
                else:
                    await self.step.wait()


# Rule 5


def _hold_up(upstream: Upstream) -> anyio.Event:
    """Return an `anyio.Event`. The filter "one" waits for it at each message, then lets other tasks run 40 times."""
    gate = anyio.Event()

    async def on_filter(event: Any) -> None:
        await gate.wait()
        for _ in range(40):
            await checkpoint()

    upstream.on_filter["one"] = on_filter
    return gate


@pytest.mark.rule("5: a message that one subscriber rejects and another fails counts as failed")
@pytest.mark.parametrize(
    "steps", ["derives waits rejects", "derives rejects waits", "rejects derives waits"]
)
async def test_a_rejection_with_a_refused_event_counts_as_failed_in_any_order(
    steps: str, upstream: Upstream
) -> None:
    class Both(Stepping):
        step = anyio.Event()

    Both.steps = steps
    async with supervised() as service:
        service.store.is_automatic = False
        service.host(Both(upstream.name, "both"), Both(upstream.name, "sibling"))
        upstream.put(0)
        await service.settle_down()
        service.store.complete(RowRefused("too large"))
        await service.settle_down()
        Both.step.set()
        await service.settle_down()
        assert upstream.outcomes() == {0: (1, 1, 0)}


# Rule 6


@pytest.mark.rule("6: after an `advance` that raised, nothing that was ready is advanced")
@pytest.mark.parametrize("mode", [Acking, AckingSideBySide])
async def test_after_an_advance_that_raised_nothing_that_was_ready_is_advanced(
    mode: type[Watching], upstream: Upstream
) -> None:
    fails = anyio.Event()
    asked: list[Any] = []

    async def on_advance(batch: Any) -> None:
        asked.append(batch[0].broker_payload[0])
        await fails.wait()
        raise OSError("the end")

    upstream.on_advance = on_advance
    async with StreamHarness(persistence="manual") as streams:
        one = await streams.add(mode(upstream.name))
        upstream.put(0)
        if mode is Acking:
            # This message is ready at the same time, and waits for its turn.
            upstream.put(3, lane="other")
        await streams.quiesce()
        await streams.persist()
        await streams.quiesce()
        upstream.put(1, 2)
        await streams.quiesce()
        await streams.persist()
        await streams.quiesce()
        fails.set()
        await streams.quiesce()
        assert isinstance(one.error, GroupEnded)
        assert asked == [0]


@pytest.mark.rule("7: an `advance` that does not return in time ends the group")
@pytest.mark.parametrize("mode", [Acking, AckingSideBySide])
async def test_an_advance_that_does_not_return_ends_the_group_after_the_ack_timeout(
    mode: type[Watching], upstream: Upstream
) -> None:
    async def on_advance(batch: Any) -> None:
        if batch[0].broker_payload[0] == "stuck":
            await forever()

    upstream.on_advance = on_advance
    async with StreamHarness(ack_timeout=60) as streams:
        one = await streams.add(mode(upstream.name))
        upstream.put("good")
        await streams.quiesce()
        await streams.sleep(50)
        upstream.put("stuck", lane="other")
        await streams.quiesce()
        # The task that checks deadlines slept until the first message's deadline, at 60 s. It notices the advance only
        # then, so the advance is overdue at 120 s.
        await streams.sleep(69.9)
        assert one.error is None
        await streams.sleep(0.1)
        assert isinstance(one.error, GroupEnded)
        assert isinstance(one.error.__cause__, BrokerUnavailable)
        assert "advance()" in str(one.error)
        assert upstream.outcomes("other") == {}


@pytest.mark.rule("7: every timeout is extended by the time for which the event loop was blocked")
@pytest.mark.parametrize("mode", [Acking, AckingSideBySide])
async def test_an_advance_that_was_answered_while_the_loop_stood_still_is_not_overdue(
    mode: type[Watching], upstream: Upstream
) -> None:
    answer = anyio.Event()

    async def on_advance(batch: Any) -> None:
        await answer.wait()
        # A response needs several turns, from the socket to the task that awaits the response.
        for _ in range(40):
            await checkpoint()

    upstream.on_advance = on_advance
    async with supervised(RuntimeSettings(ack_timeout=10)) as service:
        (one,) = service.host(mode(upstream.name))
        upstream.put(0)
        await service.settle_down()
        # The deadlines are checked at 10 s, while the advance is under way.
        await service.pass_time(10)
        service.clock.move_to(25)
        answer.set()
        await service.settle_down()
        await service.pass_time(10)
        assert one.error is None
        assert upstream.outcomes() == {0: (1, 0, 0)}


@pytest.mark.rule("7: every timeout is extended by the time for which the event loop was blocked")
async def test_a_filter_that_could_not_run_while_the_loop_stood_still_is_not_overdue(
    upstream: Upstream,
) -> None:
    gate = _hold_up(upstream)
    async with supervised(RuntimeSettings(ack_timeout=10)) as service:
        (one,) = service.host(Acking(upstream.name))
        upstream.put(0, 1, 2, 3)
        await service.settle_down()
        service.clock.move_to(13)
        gate.set()
        await service.settle_down()
        await service.pass_time(10)
        assert one.error is None
        assert upstream.outcomes() == dict.fromkeys(range(4), (1, 0, 0))


@pytest.mark.parametrize("at", [0.1, 0.6, 1.7])
async def test_an_event_is_overdue_at_the_moment_for_which_the_look_is_planned(
    upstream: Upstream, at: float
) -> None:
    """In floats, 0.1 + 10 - 10 is less than 0.1.

    So a check that runs exactly at the deadline could find that the event is not overdue, and run again and again.
    """
    upstream.on_filter["one"] = forever
    async with supervised(RuntimeSettings(ack_timeout=10)) as service:
        (one,) = service.host(Acking(upstream.name))
        service.clock.move_to(at)
        upstream.put(0)
        await service.settle_down()
        service.clock.move_to(at + 10)
        for _ in range(1000):
            await asyncio.sleep(0)
        assert isinstance(one.error, AckTimeout)


@pytest.mark.rule("7: every timeout is extended by the time for which the event loop was blocked")
async def test_a_filter_that_is_stuck_for_longer_than_the_loop_stood_still_is_overdue(
    upstream: Upstream,
) -> None:
    upstream.on_filter["one"] = forever
    async with supervised(RuntimeSettings(ack_timeout=10)) as service:
        (one,) = service.host(Acking(upstream.name))
        upstream.put(0)
        await service.settle_down()
        service.clock.move_to(13)
        await service.settle_down()
        await service.pass_time(2.9)
        assert one.error is None
        await service.pass_time(0.1)
        assert isinstance(one.error, AckTimeout)


async def test_the_time_that_was_given_once_more_is_no_reason_to_give_more(
    upstream: Upstream,
) -> None:
    async def stuck_at_one(event: Any) -> None:
        if event == 1:
            await forever()

    upstream.on_filter |= {"early": forever, "late": stuck_at_one}
    async with supervised(RuntimeSettings(ack_timeout=10)) as service:
        early, late = service.host(Acking(upstream.name, "early"), Acking(upstream.name, "late"))
        upstream.put(0)
        await service.pass_time(4)
        upstream.put(1)
        await service.settle_down()
        service.clock.move_to(13)
        await service.settle_down()
        await service.pass_time(2.9)
        assert (early.error, late.error) == (None, None)
        await service.pass_time(0.1)
        assert isinstance(early.error, AckTimeout)
        # Event 1 was due at 14 s. The extended wait for `early` gave `late` two more seconds, but no further time.
        assert isinstance(late.error, AckTimeout)


async def test_an_advance_that_cannot_be_cancelled_is_seen_to_fail_before_it_returns(
    upstream: Upstream,
) -> None:
    gate = anyio.Event()

    async def on_advance(batch: Any) -> None:
        with anyio.CancelScope(shield=True):
            await gate.wait()

    upstream.on_advance = on_advance
    async with supervised(RuntimeSettings(ack_timeout=10)) as service:
        (one,) = service.host(Acking(upstream.name))
        upstream.put(0)
        await service.settle_down()
        await service.pass_time(20)
        assert isinstance(one.error, GroupEnded)
        assert "advance()" in str(one.error)
        assert len(upstream.producers) == 1, "nothing is opened beside an advance that goes on"
        upstream.on_advance = None
        gate.set()
        await service.settle_down()
        await service.pass_time(60)
        assert len(upstream.producers) == 2


@pytest.mark.rule("7: an `advance` that does not return in time ends the group")
@pytest.mark.parametrize("mode", [Acking, AckingSideBySide])
async def test_advances_that_return_in_time_are_not_counted_together(
    mode: type[Watching], upstream: Upstream
) -> None:
    returns = anyio.Event()

    async def on_advance(batch: Any) -> None:
        nonlocal returns
        await returns.wait()
        returns = anyio.Event()

    upstream.on_advance = on_advance
    async with StreamHarness(ack_timeout=60, persistence="manual") as streams:
        one = await streams.add(mode(upstream.name))
        lanes = ["a", "b", "c"] if mode is Acking else ["a"] * 3
        for value, lane in enumerate(lanes):
            upstream.put(value, lane=lane)
        await streams.quiesce()
        for _ in lanes:
            await streams.persist()
            await streams.quiesce()
            await streams.sleep(40)
            returns.set()
            await streams.quiesce()
        # No answer is awaited now.
        await streams.sleep(200)
        assert one.error is None
        assert sum(len(upstream.outcomes(lane)) for lane in set(lanes)) == 3


@pytest.mark.rule(
    "6: an error of the producer ends the group: all subscribers get it, and a new group starts"
)
async def test_the_end_of_a_group_is_raised_where_its_filters_await_the_stream(
    upstream: Upstream,
) -> None:
    async with StreamHarness() as streams:
        both = [await streams.add(Catching(upstream.name, name)) for name in ("one", "two")]
        await streams.quiesce()
        upstream.fail(OSError("the end"))
        await streams.quiesce()
        assert [one.error for one in both] == upstream.caught
        assert len(upstream.caught) == 2


class Lingering(Producer):
    """A producer whose method `fails` raises, and whose other running method ends only once `may_end` is set."""

    lanes_advance_side_by_side = False
    pauses_lanes = True
    fails: str
    goes_on: anyio.Event
    may_end: anyio.Event

    async def open_stream(self) -> AsyncIterator[tuple[Any, Any]]:
        try:
            async for item in super().open_stream():
                yield item
        finally:
            if self.fails != "open_stream":
                with anyio.CancelScope(shield=True):
                    await self.may_end.wait()

    async def advance(self, batch: Any) -> None:
        if self.fails == "advance":
            raise OSError("the end")
        if self.fails == "resume_lane":
            await self.goes_on.wait()
        if self.fails == "open_stream":
            with anyio.CancelScope(shield=True):
                await self.may_end.wait()

    async def resume_lane(self, lane: Any) -> None:
        raise OSError("the end")


@pytest.mark.rule("6: no subscriber joins a group that is ending")
@pytest.mark.parametrize(
    ("fails", "side_by_side"),
    [("open_stream", False), ("advance", False), ("advance", True), ("resume_lane", False)],
)
async def test_nobody_joins_from_the_moment_in_which_a_group_fails(
    fails: str, side_by_side: bool, upstream: Upstream
) -> None:
    """A failed group may take time to end. A member that joined the group in this time would never be served."""

    class Producing(Lingering):
        lanes_advance_side_by_side = side_by_side
        goes_on = anyio.Event()
        may_end = anyio.Event()

    Producing.fails = fails

    class Opening(Acking):
        @classmethod
        def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
            return Producing(upstream)

    group = Group(
        upstream.name,
        Opening,
        {},
        sink=Store(),
        clock=VirtualClock(),
        lease=OwnLease.unlimited(),
        settings=RuntimeSettings(max_outstanding_per_lane=2),
        pending=PendingLimit(10),
        backlogs=Backlogs(None),
        source_of=lambda watcher: None,
        name_of=str,
        now=lambda: datetime.now(UTC),
    )

    async def run() -> None:
        with pytest.raises(GroupEnded, match="the end"):
            await group.run()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        upstream.put(0, 1)
        await anyio.wait_all_tasks_blocked()
        if fails == "open_stream":
            upstream.fail(OSError("the end"))
        Producing.goes_on.set()
        await anyio.wait_all_tasks_blocked()
        try:
            assert upstream.closed == 0, "it has failed, and has not ended"
            with pytest.raises(GroupEnded, match="is ending"):
                group.subscribers.join(
                    Opening(upstream.name), name="late", source=EventSource((), None)
                )
        finally:
            Producing.may_end.set()


# Rule 7


@pytest.mark.rule(
    "7: a filter that raises fails its open message, and every message that it has not pulled"
)
async def test_a_filter_that_raises_takes_nothing_back_that_it_had_moved_past(
    upstream: Upstream,
) -> None:
    async def act(event: Any) -> None:
        if event == 1:
            raise RuntimeError("boom")

    upstream.on_filter["one"] = act
    async with StreamHarness(persistence="manual") as streams:
        one = await streams.add(Acking(upstream.name))
        upstream.put(0, 1)
        await streams.quiesce()
        assert isinstance(one.error, RuntimeError)
        assert upstream.outcomes() == {}
        await streams.persist()
        await streams.quiesce()
        assert upstream.outcomes() == {0: (1, 0, 0), 1: (0, 1, 0)}


@pytest.mark.rule("7: a filter that hangs in its own code is cancelled at its ack timeout")
async def test_an_error_that_a_stuck_filter_raises_when_cancelled_is_not_its_error(
    upstream: Upstream,
) -> None:
    async def act(event: Any) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise ValueError("as a library may, on its way out")

    upstream.on_filter["one"] = act
    async with StreamHarness(ack_timeout=60) as streams:
        one = await streams.add(Acking(upstream.name))
        upstream.put(0)
        await streams.sleep(60)
        assert isinstance(one.error, AckTimeout)
        assert upstream.outcomes() == {0: (0, 1, 0)}


@pytest.mark.rule(
    "7: a subscriber that does not resolve a message within the ack timeout of its broadcast fails",
    "7: the ack timeout also applies to a message whose events never become durable",
)
@pytest.mark.parametrize("who", ["holds its event", "waits for the store", "has left"])
async def test_an_event_is_overdue_one_timeout_after_its_own_broadcast(
    who: str, upstream: Upstream
) -> None:
    """The event is broadcast at 40 s. The check at 60 s finds nothing overdue, so a check must follow at 100 s."""
    if who == "holds its event":
        upstream.on_filter["one"] = forever
    async with supervised(RuntimeSettings(ack_timeout=60, close_timeout=0.5)) as service:
        service.store.is_automatic = False
        one, _ = service.host(Acking(upstream.name, "one"), Acking(upstream.name, "two", only=[]))
        await service.pass_time(40)
        upstream.put(0)
        await service.settle_down()
        if who == "has left":
            service.manager.remove(one, on_purpose=True)
        await service.pass_time(59)
        assert upstream.outcomes() == {}
        await service.pass_time(1)
        assert upstream.outcomes() == {0: (1, 1, 0)}
        # A subscriber that left on purpose has no error.
        assert isinstance(one.error, AckTimeout) is (who != "has left")


# Rule 8


@pytest.mark.rule(
    "8: a full queue of a subscriber pauses the poll; after the grace that subscriber fails"
)
async def test_a_full_subscriber_that_moves_within_the_grace_is_spared_beside_a_stuck_one(
    upstream: Upstream,
) -> None:
    moves_on = anyio.Event()

    async def hold(event: Any) -> None:
        await moves_on.wait()

    upstream.on_filter |= {"stuck": forever, "slow": hold}
    async with StreamHarness(subscriber_queue_size=2, overflow_grace=5) as streams:
        stuck = await streams.add(Acking(upstream.name, "stuck"))
        slow = await streams.add(Acking(upstream.name, "slow"))
        upstream.put(*range(10))
        await streams.sleep(4)
        moves_on.set()
        await streams.sleep(1)
        assert isinstance(stuck.error, SubscriberOverflow)
        assert slow.error is None
        assert [event.payload["value"] for event in slow.events] == list(range(10))


async def test_a_full_filter_that_could_not_run_while_the_loop_stood_still_has_not_overflowed(
    upstream: Upstream,
) -> None:
    gate = _hold_up(upstream)
    settings = RuntimeSettings(subscriber_queue_size=4, overflow_grace=5)
    async with supervised(settings) as service:
        (one,) = service.host(Acking(upstream.name))
        upstream.put(*range(20))
        await service.settle_down()
        service.clock.move_to(7)
        gate.set()
        await service.settle_down()
        await service.pass_time(10)
        assert one.error is None
        assert upstream.outcomes() == dict.fromkeys(range(20), (1, 0, 0))


# After the end


async def test_a_group_that_has_ended_keeps_no_message_though_it_waits_for_the_collector(
    upstream: Upstream,
) -> None:
    class Message:
        pass

    upstream.on_filter["one"] = forever
    gc.collect()
    gc.disable()
    try:
        async with StreamHarness() as streams:
            await streams.add(Acking(upstream.name))
            messages = [Message() for _ in range(50)]
            kept = [weakref.ref(message) for message in messages]
            upstream.put(*messages)
            messages.clear()
            await streams.quiesce()
            assert sum(one() is not None for one in kept) == 50
            upstream.fail(ConnectionResetError())
            await streams.quiesce()
            # One or two messages may be alive: in the frames of the error's traceback.
            assert sum(one() is not None for one in kept) <= 2
    finally:
        gc.enable()
