"""Locks are kept while watchers work: in the real runtime, with filters that wait and filters that compute."""

from __future__ import annotations

import asyncio
import time

import pytest

from producers.servicebus import ServiceBusSharedStreamProducer
from tests.servicebus.conftest import LOCK_S, Queue
from tests.servicebus.driving import drive
from tests.services.working import check_that_each_comes_once
from triggerer.testing.resolving import gated


@pytest.mark.rule("the task that renews locks starves while a filter computes")
@pytest.mark.parametrize("computes", [False, True], ids=["waits", "computes"])
@pytest.mark.parametrize("of", ["queue", "sessions"])
async def test_a_filter_that_takes_long_loses_nobodys_messages(
    request: pytest.FixtureRequest, computes: bool, of: str
) -> None:
    """One that needs three periods keeps its own; one that computes on the loop for one keeps the others'."""
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


async def test_a_lock_that_is_lost_harms_nobody_and_the_message_comes_again(queue: Queue) -> None:
    queue.send("a")
    async with drive(queue.producer(), gated(gate := [False])) as driver:
        await driver.count(1)
        queue.order("expire_locks")
        await driver.count(2)
        gate[0] = True
        await driver.advance()
        await driver.until(lambda: queue.values == [], "it is completed")
        assert len({one.key for one in driver.deliveries}) == 1
        # Nothing is taken for being in flight still.
        producer = driver.producer
        assert isinstance(producer, ServiceBusSharedStreamProducer)
        assert producer._stream.room == producer._settings.max_in_flight


async def test_a_failed_message_keeps_its_lock_until_it_may_come_again(queue: Queue) -> None:
    """Service Bus has no delay for what is abandoned: it is abandoned later."""
    from triggerer.testing.resolving import acked, failing_once

    queue.send("a")
    producer = queue.producer(redelivery_delay_s=LOCK_S * 4, redelivery_delay_max_s=LOCK_S * 4)
    producer._policy.random.uniform = lambda _, longest: longest  # type: ignore[method-assign]
    async with drive(producer, failing_once("a")) as driver:
        await driver.advanced_count(1)
        started = time.monotonic()
        await driver.stay_quiet(LOCK_S * 2)
        assert queue.locked == 1
        await driver.until(lambda: "a" in acked(driver), "it comes again")
        assert time.monotonic() - started >= LOCK_S * 3.5
        assert [one.payload.deliveries for one in driver.deliveries] == [1, 2]
