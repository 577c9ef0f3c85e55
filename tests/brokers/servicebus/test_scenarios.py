"""Failures that other programs had with Service Bus. docs/notes/rules.md lists them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial

import anyio
import pytest

from producers.servicebus import stream
from producers.servicebus.link import Link
from producers.servicebus.sdk.thread import THREAD
from producers.servicebus.settle import SettleRequest
from tests.brokers.servicebus.conftest import LOCK_S, MakeQueue, Queue
from tests.brokers.servicebus.driving import drive
from triggerer.abc import AdvanceItem, AdvanceOutcome
from triggerer.errors import BrokerRefused
from triggerer.testing.conformance.driver import ACKED, FAILED, Delivery
from triggerer.testing.conformance.resolutions import acked, failing_once, gated, nothing


def numbered(count: int) -> list[str]:
    return [f"m{number:03}" for number in range(count)]


@pytest.mark.rule(
    "a wait ends just as a message arrives: the result is empty, but the message is locked"
)
async def test_a_message_that_comes_as_a_wait_ends_is_not_lost(queue: Queue) -> None:
    """Each completion interrupts the producer's wait for the next message, which may arrive at that moment."""
    values = numbered(150)
    async with drive(queue.producer()) as driver:
        for value in values:
            await asyncio.to_thread(queue.send, value)
        await driver.advanced_count(len(values))
        assert sorted(driver.values) == values
        assert {one.payload.deliveries for one in driver.deliveries} == {1}
        assert await asyncio.to_thread(lambda: queue.server.stats()["released"]) == 0
    assert queue.values == []


@pytest.mark.rule(
    "a receiver closes with credit outstanding, and restarts spend the delivery counts of messages"
)
async def test_restarts_spend_no_delivery_count(make_queue: MakeQueue) -> None:
    queue = make_queue(max_delivery_count=3, lock_s=30.0)
    values = numbered(20)
    queue.send(*values)
    for _ in range(5):
        async with drive(queue.producer(), nothing) as driver:
            await driver.count(20)
        # The stop itself gives the messages back, before their locks expire.
        assert queue.locked == 0
    assert queue.delivery_counts == [0] * 20
    assert queue.server.dead_letters(queue.path) == []


@pytest.mark.rule("while the poll pauses, locks run out in the buffer, and deliveries are spent")
async def test_a_pause_spends_no_lock_and_no_delivery_count(make_queue: MakeQueue) -> None:
    queue = make_queue(max_delivery_count=2)
    async with drive(queue.producer()) as driver:
        await asyncio.to_thread(queue.send, "first")
        await driver.advanced_count(1)
        await driver.producer.pause()
        await asyncio.to_thread(queue.send, *numbered(30))
        await driver.stay_quiet(LOCK_S * 3)
        assert driver.values == ["first"]
        assert set(queue.delivery_counts) == {0}
        await driver.producer.resume()
        await driver.advanced_count(31)
        assert {one.payload.deliveries for one in driver.deliveries} == {1}
    assert queue.values == []


@pytest.mark.rule("after a slow message the next one arrives with its lock already over")
async def test_what_waits_behind_a_slow_message_keeps_its_lock(queue: Queue) -> None:
    queue.send(*numbered(10))
    async with drive(queue.producer()) as driver:
        is_first = True

        async def take_long() -> None:
            nonlocal is_first
            if is_first:
                is_first = False
                await anyio.sleep(LOCK_S * 2.5)

        driver.before_pull = take_long
        await driver.advanced_count(10)
        assert {one.payload.deliveries for one in driver.deliveries} == {1}
    assert queue.values == []


@pytest.mark.rule("after ten idle minutes the iterator ends without an error")
async def test_an_idle_stream_stays_connected(queue: Queue) -> None:
    """The stream is idle for more than three idle timeouts of the connection."""
    async with drive(queue.producer(idle_timeout_s=1.5)) as driver:
        await asyncio.to_thread(queue.send, "a")
        await driver.advanced_count(1)
        transfers = queue.server.stats()["transfers"]
        await driver.stay_quiet(5.0)
        # `transfers` counts the transfers of open connections only. After a reconnection it would be smaller.
        assert queue.server.stats()["transfers"] >= transfers
        await asyncio.to_thread(queue.send, "b")
        started = time.monotonic()
        await driver.advanced_count(2)
        assert time.monotonic() - started < 3


@pytest.mark.rule("the link drops after a message was received, and the message cannot be settled")
@pytest.mark.parametrize("drop", ["detach", "cut"])
async def test_what_was_received_on_a_link_that_dropped_is_settled_on_the_next(
    make_queue: MakeQueue, drop: str
) -> None:
    queue = make_queue(lock_s=30.0)
    queue.send("a", "b")
    async with drive(queue.producer(), gated(gate := [False])) as driver:
        await driver.count(2)
        if drop == "detach":
            queue.order("detach", condition="amqp:link:detach-forced", description="for a test")
        else:
            queue.order("cut")
        gate[0] = True
        await driver.advance()
        assert queue.values == []
        await asyncio.to_thread(queue.send, "c")
        await driver.until(lambda: "c" in acked(driver), "it goes on")
        assert driver.values == ["a", "b", "c"]


@pytest.mark.rule(
    "a token's refresh reports success; hours later the receiver dies of authorisation"
)
async def test_a_token_that_is_good_no_more_ends_the_stream_with_an_error(queue: Queue) -> None:
    queue.server.order("tokens", lifetime_s=1.0)
    async with drive(queue.producer()) as driver:
        await asyncio.to_thread(queue.send, "a")
        await driver.advanced_count(1)
        with pytest.raises(BrokerRefused, match=r"token is expired.*replace the Shared"):  # noqa: PT012
            while True:
                await driver.stay_quiet(0.1)
    queue.server.order("tokens")
    queue.send("b")
    async with drive(queue.producer()) as driver:
        await driver.advanced_count(1)


@pytest.mark.rule("in a session a message is left unsettled, and later messages pass it")
async def test_what_follows_a_failed_message_of_a_session_comes_after_it(sessions: Queue) -> None:
    values = numbered(9)
    sessions.send(*values, session="one")
    sessions.send("other", session="two")
    async with drive(sessions.producer(), failing_once("m004")) as driver:
        await driver.until(lambda: {*values, "other"} <= acked(driver), "all are taken")
        assert sessions.values == []
        order = [
            delivery.value
            for delivery, outcome in driver.advanced
            if outcome.is_clean and delivery.value != "other"
        ]
    # The later messages were processed but not completed, so they came again.
    assert order[: order.index("m004")].count("m003") == 1
    assert order[order.index("m004") :] == values[4:]
    assert [one.payload.deliveries for one in driver.deliveries if one.value == "m004"] == [1, 2]
    later = [one.payload.deliveries for one in driver.deliveries if one.value > "m004"]
    assert set(later) - {1} <= {1} or "other" in driver.values


@pytest.mark.parametrize("session", [None, "one"])
async def test_what_the_watchers_have_not_looked_at_is_given_again_and_spends_no_delivery(
    make_queue: MakeQueue, session: str | None
) -> None:
    """A message fails unread if the watcher stopped at another message before it.

    The producer then releases the message, and Service Bus does not count a release as a delivery.
    """
    queue = make_queue(max_delivery_count=1, requires_session=session is not None)
    values = numbered(9)
    queue.send(*values, session=session)
    left = {"m000": 3, "m004": 1}

    def resolve(delivery: Delivery) -> AdvanceOutcome:
        if left.get(delivery.value, 0):
            left[delivery.value] -= 1
            return AdvanceOutcome(acked=0, failed=1, rejected=0, unread=1)
        return ACKED

    async with drive(queue.producer(max_deliveries=1), resolve) as driver:
        await driver.until(lambda: set(values) == acked(driver), "all are taken")
        await driver.until(lambda: queue.values == [], "all are completed")
        assert driver.values.count("m000") == 4
        done = [one.value for one, outcome in driver.advanced if outcome is ACKED]
        # The messages after m004 in the session were processed but not completed, so they came again.
        assert session is None or done[-5:] == values[4:]
    assert queue.server.dead_letters(queue.path) == []


@pytest.mark.rule(
    "a lost session lock never heals; that no session is available counts as a failure"
)
async def test_no_session_for_long_is_no_failure(
    sessions: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_NEXT_SESSION_WAIT_S", 0.5)
    async with drive(sessions.producer(connect_timeout_s=1.0)) as driver:
        await driver.stay_quiet(3.0)
        await asyncio.to_thread(sessions.send, "a", session="late")
        await driver.advanced_count(1)


@pytest.mark.rule("a topic is deleted and created again")
async def test_a_queue_that_was_made_again_has_other_keys(queue: Queue) -> None:
    keys = []
    for _ in range(2):
        queue.send("a")
        async with drive(queue.producer()) as driver:
            await driver.advanced_count(1)
            keys += [one.key for one in driver.deliveries]
        queue.order("delete")
        await anyio.sleep(0.01)
        queue.server.create(queue.path)
    first, second = (key.rpartition("@")[0] for key in keys if key is not None)
    assert first == second
    assert keys[0] != keys[1]


async def test_an_entity_that_is_deleted_ends_the_stream_with_an_error(queue: Queue) -> None:
    async with drive(queue.producer()) as driver:
        await asyncio.to_thread(queue.send, "a")
        await driver.advanced_count(1)
        queue.order("delete")
        with pytest.raises(BrokerRefused, match=f"there is no queue '{queue.path}'"):  # noqa: PT012
            while True:
                await driver.stay_quiet(0.1)


async def test_an_idle_stream_asks_for_nothing(queue: Queue, sessions: Queue) -> None:
    async with drive(queue.producer()) as one, drive(sessions.producer()) as other:
        await asyncio.to_thread(queue.send, "a")
        await one.advanced_count(1)
        await anyio.sleep(1.0)
        before = queue.server.stats()
        await one.stay_quiet(2.0)
        await other.stay_quiet(0.0)
        after = queue.server.stats()
    # Each stream has one connection. The stream with sessions waits for its first session.
    assert before["connections"] == 2
    assert before["waiting"] == 1
    assert after == before


async def test_as_many_poison_messages_as_places_let_others_through(queue: Queue) -> None:
    def resolve(delivery: Delivery) -> AdvanceOutcome:
        return FAILED if delivery.value.startswith("bad") else ACKED

    queue.send(*(f"bad{number}" for number in range(20)))
    producer = queue.producer(
        max_in_flight=10, redelivery_delay_s=30.0, redelivery_delay_max_s=30.0, max_deliveries=0
    )
    async with drive(producer, resolve) as driver:
        await driver.advanced_count(20)
        await asyncio.to_thread(queue.send, *numbered(20))
        await driver.until(lambda: set(numbered(20)) <= acked(driver), "the others come")


async def test_messages_that_are_done_together_are_one_order_and_one_that_failed_comes_again(
    make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = make_queue(lock_s=30.0)
    queue.send(*numbered(30))
    together: list[int] = []
    add = Link.add_settle_requests

    def note(link: Link, orders: Sequence[SettleRequest]) -> None:
        together.append(len(orders))
        add(link, orders)

    async with drive(queue.producer(), nothing) as driver:
        await driver.count(30)
        monkeypatch.setattr(Link, "add_settle_requests", note)
        outcomes = {"m007": FAILED, "m008": AdvanceOutcome(acked=1, failed=0, rejected=1)}
        await driver.producer.advance_lanes(
            [
                [AdvanceItem(one.payload, outcomes.get(one.value, ACKED))]
                for one in list(driver.deliveries)
            ]
        )
        assert together == [30]
        await driver.until(lambda: driver.values.count("m007") == 2, "it comes again")
        assert len(driver.values) == 31
        assert queue.values == ["m007"]
        assert [one["value"] for one in queue.server.dead_letters(queue.path)] == ["m008"]


async def test_a_slow_session_holds_up_no_lane_of_the_same_call(
    sessions: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("slow", "a", "b"):
        sessions.send(f"{name}-1", f"{name}-2", session=name)
    add = Link.add_settle_requests
    held: list[tuple[Link, Sequence[SettleRequest]]] = []

    def hold(link: Link, orders: Sequence[SettleRequest]) -> None:
        if link.session_id == "slow":
            held.append((link, orders))
        else:
            add(link, orders)

    reported: list[int] = []
    async with drive(sessions.producer(), nothing) as driver:
        await driver.count(6)
        lanes = driver.pending_by_lane()
        (slow,) = (place for place, (values, _) in enumerate(lanes) if values[0] == "slow-1")
        batches = [[AdvanceItem(one, ACKED) for one in payloads] for _, payloads in lanes]
        monkeypatch.setattr(Link, "add_settle_requests", hold)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(driver.producer.advance_lanes, batches, reported.extend)
            with anyio.fail_after(10):
                while len(reported) < 2:  # noqa: ASYNC110  (nobody tells)
                    await anyio.sleep(0.01)
            assert sorted([*reported, slow]) == [0, 1, 2]
            assert sessions.values == ["slow-1", "slow-2"]
            ((link, orders),) = held
            THREAD.call(partial(add, link, orders))
        assert sessions.values == []


async def test_nothing_to_advance_is_advanced_at_once(queue: Queue) -> None:
    async with drive(queue.producer(), nothing) as driver:
        with anyio.fail_after(5):
            await driver.producer.advance_lanes([])
