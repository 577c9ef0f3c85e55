"""The order within the groups of a FIFO queue whose server is restarted."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from typing import Any

import anyio
import pytest

from producers.sqs import SqsSharedStreamProducer
from producers.sqs.settings import SqsSettings
from tests.brokers.sqs.driving import driving, eventually, producer_on
from tests.services.brokers.elasticmq import open_elasticmq
from tests.services.brokers.sqs_double import FifoDouble, open_fifo_double
from tests.services.tcp_proxy import open_tcp_proxy
from triggerer.abc import AdvanceOutcome
from triggerer.testing.conformance.driver import ACKED, FAILED, Delivery, Driver

_GROUPS = ("a", "b", "c")


@pytest.fixture
async def double() -> AsyncIterator[FifoDouble]:
    async with open_fifo_double(visibility_s=1) as opened:
        yield opened


def _producer(double: FifoDouble, **settings: Any) -> SqsSharedStreamProducer:
    quick = {"receive_wait_s": 1, "redelivery_delay_s": 0.1, "redelivery_delay_max_s": 0.4}
    return SqsSharedStreamProducer(
        double.url, settings=SqsSettings.from_mapping("test", double.connection | quick | settings)
    )


def _bodies(group: str, count: int, first: int = 0) -> list[str]:
    return [f"{group}{number:03}" for number in range(first, first + count)]


def _check(done: Sequence[str], expected: Sequence[str]) -> None:
    """Check that each message was done exactly once, and each group in its order."""
    assert sorted(done) == sorted(expected)
    by_group = defaultdict(list)
    for value in done:
        by_group[value[0]].append(value)
    assert all(values == sorted(values) for values in by_group.values()), by_group


def _check_keys(driver: Driver) -> None:
    """Check that each message had the same key at all deliveries. So the store recognises repeats."""
    by_value = defaultdict(set)
    for one in driver.deliveries:
        by_value[one.value].add(one.key)
    assert {len(keys) for keys in by_value.values()} == {1}


@pytest.mark.rule(
    "FIFO: the server is restarted with messages in flight; groups keep their order, nothing is lost or done twice"
)
async def test_groups_keep_their_order_while_the_server_is_restarted_with_messages_in_flight(
    double: FifoDouble,
) -> None:
    for group in _GROUPS:
        double.send(_bodies(group, 40), group=group)
    is_open = False
    failed: set[str | None] = set()

    def resolve(one: Delivery) -> AdvanceOutcome | None:
        if not is_open:
            return None
        if one.value in ("a007", "b013") and one.key not in failed:
            failed.add(one.key)
            return FAILED
        return ACKED

    async with driving(_producer(double), resolve) as driver:
        await driver.count(10)
        in_flight = double.in_flight()
        assert in_flight
        await double.stop()
        await anyio.sleep(0.3)
        await double.start()
        assert double.in_flight() == in_flight, "the server has kept which messages are in flight"
        is_open = True
        await driver.advance()
        await double.stop()
        await double.start()
        for group in _GROUPS:
            double.send(_bodies(group, 20, 40), group=group)
        await eventually(lambda: not double.messages, "all are deleted")
        _check(double.deleted, [body for group in _GROUPS for body in _bodies(group, 60)])
        _check_keys(driver)
    assert len(failed) == 2


async def test_groups_keep_their_order_where_the_restart_outlasts_the_visibility(
    double: FifoDouble,
) -> None:
    double.send(_bodies("a", 30), group="a")
    is_open = False
    async with driving(_producer(double), lambda _: ACKED if is_open else None) as driver:
        await driver.count(10)
        await double.stop()
        await eventually(lambda: not double.in_flight(), "nobody has it any more")
        await double.start()
        await eventually(lambda: len(double.handed_out) > 10, "it comes again")
        is_open = True
        await driver.advance()
        await eventually(lambda: not double.messages, "all are deleted")
        _check(double.deleted, _bodies("a", 30))
        _check_keys(driver)


async def test_an_answer_that_the_restart_cut_off_costs_no_order(double: FifoDouble) -> None:
    """An answer with messages of a group is lost, and the server restarts. The server has then forgotten the request's
    attempt id, so it cannot repeat the answer. The group waits until these messages are visible again.
    """
    lost = 0

    def lose(action: str) -> None:
        nonlocal lost
        if action == "ReceiveMessage" and double.handed_out and not lost:
            lost = len(double.handed_out)
            raise ConnectionResetError

    double.before_answer = lose
    double.send(_bodies("a", 30), group="a")
    async with driving(_producer(double)) as driver:
        await eventually(lambda: bool(lost), "an answer is lost")
        await double.stop()
        await double.start()
        await eventually(lambda: not double.messages, "all are deleted")
        _check(double.deleted, _bodies("a", 30))
        assert driver.values == _bodies("a", 30)


async def test_the_stream_is_begun_anew_after_the_restart_and_groups_keep_their_order(
    double: FifoDouble,
) -> None:
    """The first stream ends while the server is away, so it cannot return its messages to the queue."""
    for group in _GROUPS:
        double.send(_bodies(group, 12), group=group)
    async with driving(_producer(double), lambda one: ACKED if one.value < "b" else None) as driver:
        await driver.count(20)
        await eventually(lambda: len(double.deleted) >= 5, "some are done")
        await double.stop()
    await double.start()
    async with driving(_producer(double)) as after:
        await eventually(lambda: not double.messages, "all are deleted")
        _check(double.deleted, [body for group in _GROUPS for body in _bodies(group, 12)])
        _check_keys(after)


async def test_what_was_sent_before_a_restart_of_elasticmq_comes_in_the_order_of_its_group() -> (
    None
):
    """During the restart, the proxy refuses the stream, and no message is in flight.

    ElasticMQ would not keep the order of messages in flight; see `sqs_double`.
    """
    with open_elasticmq(durable=True) as server, open_tcp_proxy(server.port) as proxy:
        url = server.create_queue("ordered.fifo", visibility_s=30)
        endpoint = f"http://127.0.0.1:{proxy.port}"
        # Only one poll at a time, because ElasticMQ hands out a restored group to several polls at once.
        producer = producer_on(
            server, url, endpoint_url=endpoint, unavailable_after_s=60, receivers=1
        )
        async with driving(producer) as driver:
            await asyncio.to_thread(server.send, url, _bodies("z", 1), group="z")
            await driver.advanced_count(1)
            proxy.refuse()
            # The poll that was cut off is still open at the server, and would take the first message. Wait for its end.
            await anyio.sleep(1.5)
            for group in _GROUPS:
                await asyncio.to_thread(server.send, url, _bodies(group, 15), group=group)
            sent = [body for group in _GROUPS for body in _bodies(group, 15)]
            # ElasticMQ stores a message only a moment after its answer.
            await anyio.sleep(2)
            await asyncio.to_thread(server.stop)
            await asyncio.to_thread(server.start)
            await eventually(lambda: _count(server, url) == len(sent), "its messages are restored")
            proxy.heal()
            await driver.advanced_count(1 + len(sent))
            await eventually(lambda: server.count(url) == 0, "all are deleted")
            _check(driver.values, [*_bodies("z", 1), *sent])


def _count(server: Any, url: str) -> int:
    """Return the number of messages, or -1 while the server listens but has not restored its queue."""
    return server.count(url) if "ordered.fifo" in server.queue_names() else -1


async def test_what_the_watchers_have_not_looked_at_is_given_again_and_spends_no_delivery(
    double: FifoDouble,
) -> None:
    """A message fails unread if the watcher stopped at another message before it.

    Such a message stays in flight, so SQS counts no further delivery.
    """
    for group in _GROUPS:
        double.send(_bodies(group, 8), group=group)
    left = {"a000": 3, "b002": 1}

    def resolve(one: Delivery) -> AdvanceOutcome:
        if left.get(one.value, 0):
            left[one.value] -= 1
            return AdvanceOutcome(acked=0, failed=1, rejected=0, unread=1)
        return ACKED

    async with driving(_producer(double, max_deliveries=1), resolve) as driver:
        await eventually(lambda: not double.messages, "all are deleted")
        _check(double.deleted, [body for group in _GROUPS for body in _bodies(group, 8)])
        _check_keys(driver)
        assert len(double.handed_out) == 24
        assert driver.values.count("a000") == 4
        assert driver.values.count("c000") == 1
