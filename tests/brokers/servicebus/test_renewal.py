"""In the real runtime, the locks of messages are renewed while a filter waits, and while a filter computes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import anyio
import pytest

from producers.servicebus import locks
from tests.brokers.servicebus.conftest import LOCK_S, MakeQueue, Queue
from tests.brokers.servicebus.driving import drive
from tests.services.working import check_that_each_comes_once
from triggerer.errors import BrokerUnavailable
from triggerer.pluginkit.delivery import DeliveryPolicy
from triggerer.testing.conformance.resolutions import acked, failing_once, gated


@pytest.mark.rule("the task that renews locks starves while a filter computes")
@pytest.mark.parametrize("computes", [False, True], ids=["waits", "computes"])
@pytest.mark.parametrize("of", ["queue", "sessions"])
async def test_a_filter_that_takes_long_loses_nobodys_messages(
    request: pytest.FixtureRequest, computes: bool, of: str
) -> None:
    queue: Queue = request.getfixturevalue(of)
    values = [f"m{number}" for number in range(20)]
    values.insert(10, "slow")
    session = "one" if of == "sessions" else None
    await asyncio.to_thread(queue.send, *values, session=session)
    takes = {"computes_s": LOCK_S * 1.5} if computes else {"waits_s": LOCK_S * 3.5}
    await check_that_each_comes_once(queue.producer, values, **takes)
    assert queue.values == []


async def test_renewal_ends_when_a_message_is_settled(queue: Queue) -> None:
    queue.send("a", "b")
    async with drive(queue.producer(), gated(gate := [False])) as driver:
        await driver.count(2)
        await driver.stay_quiet(LOCK_S * 2)
        renewals = queue.server.stats()["operations"]["renew-lock"]
        assert renewals >= 2
        gate[0] = True
        await driver.advance()
        before = queue.server.stats()["operations"]["renew-lock"]
        await driver.stay_quiet(LOCK_S * 2)
        assert queue.server.stats()["operations"]["renew-lock"] == before


@pytest.mark.parametrize("of", ["queue", "sessions"])
async def test_a_clock_that_is_ahead_does_not_have_locks_renewed_without_a_pause(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    """To a clock that is ahead, new locks seem to have ended."""
    queue: Queue = request.getfixturevalue(of)
    real = locks.remaining_s
    monkeypatch.setattr(locks, "remaining_s", lambda until: real(until) - 3600)
    queue.send("a", session="one" if of == "sessions" else None)

    def renewals() -> int:
        done = queue.server.stats()["operations"]
        return int(done.get("renew-lock", 0) + done.get("renew-session-lock", 0))

    before = renewals()
    async with drive(queue.producer(), gated(gate := [False])) as driver:
        await driver.count(1)
        await driver.stay_quiet(LOCK_S * 2)
        # The lock is renewed nevertheless.
        assert 2 <= renewals() - before <= 20
        gate[0] = True
        await driver.advance()
    assert queue.values == []


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(30):
        while not await asyncio.to_thread(condition):  # noqa: ASYNC110  (of a server)
            await anyio.sleep(0.02)


@pytest.mark.rule(
    "a lost session lock never heals; that no session is available counts as a failure"
)
@pytest.mark.parametrize("of", ["queue", "sessions"])
async def test_a_watcher_that_takes_longer_than_a_lock_that_cannot_be_renewed_gets_each_message_once(
    request: pytest.FixtureRequest, of: str
) -> None:
    """Service Bus delivers a message again whenever its lock is lost."""
    queue: Queue = request.getfixturevalue(of)
    queue.order("refuse_renewals", refuse=True)
    values = [f"m{number}" for number in range(20)]
    values.insert(10, "slow")
    await asyncio.to_thread(queue.send, *values, session="one" if of == "sessions" else None)
    await check_that_each_comes_once(queue.producer, values, waits_s=LOCK_S * 3.5)


@pytest.mark.parametrize("of", ["queue", "sessions"])
async def test_a_message_whose_lock_is_lost_is_settled_by_the_next_one(
    request: pytest.FixtureRequest, of: str
) -> None:
    queue: Queue = request.getfixturevalue(of)
    queue.send("a", "b", session="one" if of == "sessions" else None)
    async with drive(queue.producer(max_in_flight=2), gated(gate := [False])) as driver:
        await driver.count(2)
        queue.order("expire_locks")
        await until(lambda: queue.delivery_counts == [1, 1] and queue.locked == 2)
        gate[0] = True
        await driver.advance()
        await until(lambda: queue.values == [])
        await asyncio.to_thread(queue.send, "c", session="one" if of == "sessions" else None)
        await driver.until(lambda: "c" in acked(driver), "it goes on")
        assert driver.values == ["a", "b", "c"]
        # The settled messages made room for two others.
        gate[0] = False
        await asyncio.to_thread(queue.send, "d", "e", session="one" if of == "sessions" else None)
        await driver.count(5)


async def test_messages_that_come_again_to_another_receiver_are_settled_by_that(
    make_queue: MakeQueue,
) -> None:
    queue = make_queue(max_delivery_count=1_000)
    values = [f"m{number:02}" for number in range(30)]
    queue.send(*values)
    async with drive(
        queue.producer(receivers=3, max_in_flight=30), gated(gate := [False])
    ) as driver:
        await driver.count(30)
        before = {one.payload.link for one in driver.deliveries}
        with anyio.fail_after(60):
            # Repeat until a message comes by another link. The link is random.
            while {one.payload.link for one in driver.deliveries} <= before:
                queue.order("detach", condition="amqp:link:detach-forced", description="updated")
                queue.order("expire_locks")
                await until(lambda: queue.locked == 30)
        gate[0] = True
        await driver.advance()
        await until(lambda: queue.values == [])
        assert sorted(driver.values) == values
        # Wait for renewals that are under way. After that, no lock is renewed, because all messages are settled.
        await driver.stay_quiet(LOCK_S)
        renewals = queue.server.stats()["operations"].get("renew-lock", 0)
        await driver.stay_quiet(LOCK_S * 2)
        assert queue.server.stats()["operations"].get("renew-lock", 0) == renewals
        # The settled messages made room for 30 others.
        gate[0] = False
        deliveries = len(driver.deliveries)
        await asyncio.to_thread(queue.send, *values)
        await driver.count(deliveries + 30)


async def test_what_was_done_when_its_lock_was_lost_is_completed_and_not_given_when_it_returns(
    queue: Queue,
) -> None:
    queue.send("a")
    queue.server.order("fail_settlements", count=1)
    async with drive(queue.producer(max_in_flight=1)) as driver:
        await driver.advanced_count(1)
        await until(lambda: queue.values == [])
        assert driver.values == ["a"]
        # The producer holds at most one message in flight. It reads "b", so it no longer counts "a".
        await asyncio.to_thread(queue.send, "b")
        await driver.advanced_count(2)
        assert driver.values == ["a", "b"]


async def test_a_failed_message_keeps_its_lock_until_it_may_come_again(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Service Bus delivers an abandoned message again at once. So the producer waits before it abandons the message."""
    queue.send("a")
    # Without jitter.
    monkeypatch.setattr(DeliveryPolicy, "delay", lambda *_: LOCK_S * 4)
    async with drive(queue.producer(), failing_once("a")) as driver:
        await driver.advanced_count(1)
        started = time.monotonic()
        await driver.stay_quiet(LOCK_S * 2)
        assert queue.locked == 1
        await driver.until(lambda: "a" in acked(driver), "it comes again")
        assert time.monotonic() - started >= LOCK_S * 3.5
        assert [one.payload.deliveries for one in driver.deliveries] == [1, 2]


async def test_a_message_whose_lock_was_lost_does_not_count_as_dead_lettered(queue: Queue) -> None:
    """Otherwise the runtime would acknowledge the message, and the watcher that is behind would never get it."""
    await asyncio.to_thread(queue.send, "a")
    async with drive(queue.producer(), gated([False])) as driver:
        await driver.count(1)
        # Without this, the message would come again at once, with a new lock.
        queue.order("hold_back", held=True)
        queue.order("expire_locks")
        with pytest.raises(BrokerUnavailable, match="not dead-lettered"):
            await driver.producer.dead_letter(driver.events[0], "no room")
        assert queue.server.dead_letters(queue.path) == []
        queue.order("hold_back", held=False)
        await driver.count(2)
        await driver.producer.dead_letter(driver.events[1], "no room")
        assert [one["value"] for one in queue.server.dead_letters(queue.path)] == ["a"]
