"""Rules of the contract, tested through the harness."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest

from tests.unit.streams.streams import Acking, Catching, Fast, Upstream
from tests.unit.streams.supervised import forever
from triggerer.abc import AckTimeout, SubscriberOverflow, TriggerEvent, reject_shared_stream_event
from triggerer.testing import StreamHarness

pytestmark = pytest.mark.asyncio


def values(events: list[TriggerEvent]) -> list[Any]:
    return [event.payload["value"] for event in events]


@pytest.mark.rule("1: all triggers with one stream key share one poll")
async def test_siblings_share_one_poll_and_filter_for_themselves(upstream: Upstream) -> None:
    async with StreamHarness() as streams:
        evens = await streams.add(Acking(upstream.name, "evens", only=[0, 2]))
        odds = await streams.add(Acking(upstream.name, "odds", only=[1, 3]))
        upstream.put(0, 1, 2, 3)
        await streams.quiesce()
        assert values(evens.events) == [0, 2]
        assert values(odds.events) == [1, 3]
        assert len(upstream.producers) == 1
        assert upstream.outcomes() == dict.fromkeys(range(4), (2, 0, 0))
        (group,) = streams.groups.values()
        assert (group.subscribers, group.outstanding, group.lanes) == (2, 0, {})
    assert upstream.closed == 1


@pytest.mark.rule("2: a filter gets the same messages in ack mode and on the fast path")
async def test_the_fast_path_shows_filters_the_same_events(upstream: Upstream) -> None:
    async with StreamHarness() as streams:
        one = await streams.add(Fast(upstream.name, "one"))
        two = await streams.add(Fast(upstream.name, "two", only=[2]))
        upstream.put(*range(3000))
        await streams.quiesce()
        assert values(one.events) == list(range(3000))
        assert values(two.events) == [2]
        assert upstream.advanced == []


@pytest.mark.rule("2: a message is not resolved before all events that derive from it are durable")
async def test_an_event_is_advanced_only_once_its_asset_events_are_durable(
    upstream: Upstream,
) -> None:
    async with StreamHarness(persistence="manual") as streams:
        one = await streams.add(Acking(upstream.name, only=[1]))
        upstream.put(0, 1, 2)
        await streams.quiesce()
        assert upstream.outcomes() == {0: (1, 0, 0)}
        assert values(one.unpersisted) == [1]
        (group,) = streams.groups.values()
        assert group.lanes == {0: 2}
        await streams.persist(1)
        await streams.quiesce()
        assert upstream.outcomes() == dict.fromkeys(range(3), (1, 0, 0))
        assert values(one.events) == [1]
        assert one.unpersisted == []


@pytest.mark.rule(
    "4: `advance` gets the ready messages at the head of a lane, in order, with their outcomes"
)
async def test_a_stuck_head_holds_up_its_own_lane_alone(upstream: Upstream) -> None:
    async with StreamHarness(persistence="manual") as streams:
        await streams.add(Acking(upstream.name, only=["stuck"]))
        upstream.put("stuck", "a", lane="left")
        upstream.put("b", "c", lane="right")
        await streams.quiesce()
        assert upstream.outcomes("left") == {}
        assert set(upstream.outcomes("right")) == {"b", "c"}


@pytest.mark.rule("10: `reject_shared_stream_event` resolves the open message as rejected, at once")
async def test_a_rejected_event_is_resolved_at_once_and_counts_as_rejected(
    upstream: Upstream,
) -> None:
    held = anyio.Event()

    async def act(event: Any) -> None:
        reject_shared_stream_event()
        await held.wait()

    upstream.on_filter["one"] = act
    async with StreamHarness() as streams:
        await streams.add(Acking(upstream.name))
        upstream.put(0)
        await streams.quiesce()
        assert upstream.outcomes() == {0: (0, 0, 1)}
        held.set()
        await streams.quiesce()


@pytest.mark.rule("rejecting from another task has no effect")
async def test_rejecting_from_a_child_task_and_from_a_thread_has_effect(upstream: Upstream) -> None:
    async def in_task(event: Any) -> None:
        async def child() -> None:
            reject_shared_stream_event()

        await asyncio.create_task(child())

    async def in_thread(event: Any) -> None:
        await asyncio.to_thread(reject_shared_stream_event)

    for name, act in (("task", in_task), ("thread", in_thread)):
        upstream.on_filter[name] = act
    async with StreamHarness() as streams:
        await streams.add(Acking(upstream.name, "task", only=[]))
        await streams.add(Acking(upstream.name, "thread", only=[]))
        upstream.put(0)
        for _ in range(50):
            await streams.quiesce()
            if upstream.outcomes():
                break
            await asyncio.sleep(0.01)
        assert upstream.outcomes() == {0: (0, 0, 2)}


@pytest.mark.rule("10: without an open message, `reject_shared_stream_event` only logs a warning")
async def test_rejecting_outside_an_open_event_warns_and_does_nothing() -> None:
    with pytest.warns(RuntimeWarning, match="no event of a shared stream is open"):
        reject_shared_stream_event()


@pytest.mark.rule("3: a watcher may join a running stream, and gets the messages from then on")
async def test_a_late_joiner_answers_for_what_is_broadcast_from_then_on(upstream: Upstream) -> None:
    async with StreamHarness() as streams:
        await streams.add(Acking(upstream.name, "first"))
        upstream.put(0)
        await streams.quiesce()
        late_joiner = await streams.add(Acking(upstream.name, "second"))
        upstream.put(1)
        await streams.quiesce()
        assert values(late_joiner.events) == [1]
        assert upstream.outcomes() == {0: (1, 0, 0), 1: (2, 0, 0)}


async def test_without_subscribers_an_event_is_not_clean(upstream: Upstream) -> None:
    async def act(event: Any) -> str:
        await anyio.sleep_forever()
        return ""

    upstream.on_filter["one"] = act
    async with StreamHarness() as streams:
        one = await streams.add(Acking(upstream.name))
        upstream.put(0, 1)
        await streams.quiesce()
        await streams.remove(one)
        await streams.quiesce()
        # 0 was pulled: accepted. 1 was never pulled: failed.
        assert upstream.outcomes() == {0: (1, 0, 0), 1: (0, 1, 0)}
        assert streams.groups == {}


@pytest.mark.rule(
    "7: a filter that raises fails its open message, and every message that it has not pulled"
)
async def test_a_filter_that_raises_fails_what_it_has_not_resolved_and_no_sibling(
    upstream: Upstream,
) -> None:
    gate = anyio.Event()

    async def act(event: Any) -> None:
        if event == 1:
            await gate.wait()
            raise RuntimeError("boom")

    upstream.on_filter["bad"] = act
    async with StreamHarness() as streams:
        bad = await streams.add(Acking(upstream.name, "bad"))
        good = await streams.add(Acking(upstream.name, "good"))
        upstream.put(0, 1, 2)
        await streams.quiesce()
        gate.set()
        await streams.quiesce()
        assert isinstance(bad.error, RuntimeError)
        assert good.error is None
        assert values(good.events) == [0, 1, 2]
        outcomes = upstream.outcomes()
        assert outcomes[0] == (2, 0, 0)
        assert outcomes[1] == (1, 1, 0)
        assert outcomes[2] == (1, 1, 0)
        upstream.put(3)
        await streams.quiesce()
        assert upstream.outcomes()[3] == (1, 0, 0)


async def test_an_advance_that_raises_ends_the_group_and_everybody_learns(
    upstream: Upstream,
) -> None:
    async def on_advance(batch: Any) -> None:
        raise OSError("broker gone")

    upstream.on_advance = on_advance
    async with StreamHarness() as streams:
        one = await streams.add(Acking(upstream.name, "one"))
        two = await streams.add(Acking(upstream.name, "two"))
        upstream.put(0, 1)
        await streams.quiesce()
        assert streams.groups == {}
        for view in (one, two):
            assert view.error is not None
            assert isinstance(view.error.__cause__, OSError)
        assert upstream.closed == 1
        assert upstream.advanced == []


@pytest.mark.rule("a client library raises a cancellation in `advance`")
@pytest.mark.parametrize("where", ["advance", "poll"])
async def test_a_cancellation_that_a_library_invents_ends_the_group_loudly(
    upstream: Upstream, where: str
) -> None:
    async def on_advance(batch: Any) -> None:
        raise asyncio.CancelledError

    if where == "advance":
        upstream.on_advance = on_advance
        upstream.put(0)
    else:
        upstream.fail(asyncio.CancelledError())
    async with StreamHarness() as streams:
        one = await streams.add(Acking(upstream.name))
        await streams.quiesce()
        assert streams.groups == {}
        assert "nobody here asked for it" in str(one.error)


async def test_a_stream_that_returns_ends_the_group(upstream: Upstream) -> None:
    async with StreamHarness() as streams:
        one = await streams.add(Acking(upstream.name))
        upstream.end()
        await streams.quiesce()
        assert "returned" in str(one.error)
        again = await streams.add(Acking(upstream.name))
        await streams.quiesce()
        assert again.error is None
        assert len(upstream.producers) == 2


@pytest.mark.rule("7: a filter that hangs in its own code is cancelled at its ack timeout")
async def test_a_stuck_filter_is_failed_with_ack_timeout_and_its_siblings_go_on(
    upstream: Upstream,
) -> None:
    upstream.on_filter["stuck"] = forever
    async with StreamHarness(ack_timeout=60) as streams:
        stuck = await streams.add(Acking(upstream.name, "stuck"))
        fine = await streams.add(Acking(upstream.name, "fine"))
        upstream.put(0)
        await streams.sleep(59)
        assert stuck.error is None
        assert upstream.outcomes() == {}
        await streams.sleep(1)
        assert isinstance(stuck.error, AckTimeout)
        assert upstream.outcomes() == {0: (1, 1, 0)}
        assert fine.error is None
        assert values(fine.events) == [0]


@pytest.mark.rule("7: the ack timeout also applies to a message whose events never become durable")
async def test_an_event_that_is_never_confirmed_fails_its_subscriber_with_ack_timeout(
    upstream: Upstream,
) -> None:
    async with StreamHarness(ack_timeout=60, persistence="manual") as streams:
        one = await streams.add(Acking(upstream.name, "one", only=[0]))
        two = await streams.add(Acking(upstream.name, "two", only=[]))
        upstream.put(0)
        await streams.quiesce()
        await streams.refuse()
        await streams.sleep(60)
        assert isinstance(one.error, AckTimeout)
        assert two.error is None
        assert upstream.outcomes() == {0: (1, 1, 0)}
        assert values(one.unpersisted) == [0]


@pytest.mark.rule("7: `AckTimeout` is raised where the filter awaits the stream")
async def test_the_timeout_is_raised_from_the_stream_where_the_filter_awaits_it(
    upstream: Upstream,
) -> None:
    async with StreamHarness(ack_timeout=60, persistence="manual") as streams:
        one = await streams.add(Catching(upstream.name))
        upstream.put(0)
        await streams.sleep(60)
        assert [one.error] == upstream.caught


@pytest.mark.rule(
    "8: a full queue of a subscriber pauses the poll; after the grace that subscriber fails"
)
async def test_a_subscriber_that_stays_full_overflows_after_the_poll_has_paused(
    upstream: Upstream,
) -> None:
    upstream.on_filter["stuck"] = forever
    async with StreamHarness(subscriber_queue_size=2, overflow_grace=5) as streams:
        stuck = await streams.add(Acking(upstream.name, "stuck"))
        fine = await streams.add(Acking(upstream.name, "fine"))
        upstream.put(*range(10))
        await streams.sleep(4)
        assert stuck.error is None
        assert values(fine.events) == [0, 1, 2]
        assert (upstream.paused, upstream.resumed) == (1, 0)
        await streams.sleep(1)
        assert isinstance(stuck.error, SubscriberOverflow)
        assert values(fine.events) == list(range(10))
        assert upstream.outcomes()[0] == (1, 1, 0)
        assert upstream.outcomes()[9] == (1, 0, 0)


async def test_a_reader_that_only_waits_for_its_turn_does_not_overflow(upstream: Upstream) -> None:
    async def act(event: Any) -> None:
        await asyncio.sleep(0)

    upstream.on_filter["one"] = act
    async with StreamHarness(subscriber_queue_size=2) as streams:
        one = await streams.add(Acking(upstream.name))
        upstream.put(*range(500))
        await streams.quiesce()
        assert one.error is None
        assert values(one.events) == list(range(500))


async def test_a_constructor_that_raises_harms_nobody_else(upstream: Upstream) -> None:
    class Broken(Acking):
        def __init__(self, upstream: str, name: str = "one", only: list[Any] | None = None) -> None:
            super().__init__(upstream, name, only)
            if name == "broken" and Upstream.known[upstream].on_filter:
                raise ValueError("no")

    broken_trigger = Broken(upstream.name, "broken")
    upstream.on_filter["x"] = lambda event: None
    async with StreamHarness() as streams:
        broken = await streams.add(broken_trigger)
        fine = await streams.add(Broken(upstream.name, "fine"))
        upstream.put(0)
        await streams.quiesce()
        assert isinstance(broken.error, ValueError)
        assert values(fine.events) == [0]


@pytest.mark.rule("4: a lane's next `advance` starts only after its former one has returned")
async def test_within_a_lane_the_next_advance_starts_after_the_last_returned(
    upstream: Upstream,
) -> None:
    gate = anyio.Event()
    running = 0

    async def on_advance(batch: Any) -> None:
        nonlocal running
        running += 1
        assert running == 1
        await gate.wait()
        running -= 1

    upstream.on_advance = on_advance
    async with StreamHarness() as streams:
        await streams.add(Acking(upstream.name))
        upstream.put(0)
        await streams.quiesce()
        upstream.put(1, 2)
        upstream.put(9, lane=1)
        await streams.quiesce()
        assert upstream.advanced == []
        gate.set()
        await streams.quiesce()
        assert [items for lane, items in upstream.advanced if lane == 0] == [
            [(0, (1, 0, 0))],
            [(1, (1, 0, 0)), (2, (1, 0, 0))],
        ]


@pytest.mark.rule("9: a shutdown resolves no message")
async def test_shutdown_advances_nothing_that_was_not_resolved(upstream: Upstream) -> None:
    upstream.on_filter["one"] = forever
    async with StreamHarness() as streams:
        await streams.add(Acking(upstream.name))
        upstream.put(0)
        await streams.quiesce()
    assert upstream.advanced == []
    assert upstream.closed == 1
