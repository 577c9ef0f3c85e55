"""A member that is closed while the group makes up its mind does not wait for that, and nobody waits for it."""

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import psutil
import pytest
from anyio.lowlevel import checkpoint

from producers.kafka import KafkaMessage, KafkaSharedStreamProducer
from tests.kafka.driving import ACKED, Driver, driving, everything, producer_on
from tests.services.kafka import KafkaServer
from triggerer.abc import AdvanceOutcome

GROUP_WAITS_S = 20.0


@pytest.fixture
def topic(kafka_server: KafkaServer) -> str:
    name = f"closing-{uuid.uuid4().hex[:8]}"
    kafka_server.create_topic(name, 2)
    kafka_server.produce(name, ["a", "b", "c"])
    return name


@asynccontextmanager
async def keeping_the_group(
    server: KafkaServer, topic: str, **settings: Any
) -> AsyncIterator[Driver]:
    """A member that has messages in flight: when another one joins, the group waits for it."""

    def nothing(_: KafkaMessage) -> AdvanceOutcome | None:
        return None

    settings = {"revoke_timeout_s": GROUP_WAITS_S, "session_timeout_ms": 30_000, **settings}
    producer = producer_on(server.bootstrap_servers, topic, topic, **settings)
    async with driving(producer, nothing) as member:
        await member.count(3)
        yield member


def _connections(server: KafkaServer) -> int:
    """How many sockets of this process are connected to the broker."""
    there = psutil.Process().net_connections("tcp")
    return sum(bool(one.raddr) and one.raddr.port == server.port for one in there)


def _coordinator(producer: KafkaSharedStreamProducer) -> Any:
    return None if producer._consumer is None else producer._consumer._coordinator


async def _waits_for_the_group(producer: KafkaSharedStreamProducer) -> None:
    """Until the broker keeps its second request to join, which has the name that the first one was answered with."""
    with anyio.fail_after(10):
        while (coordinator := _coordinator(producer)) is None or not coordinator.member_id:  # noqa: ASYNC110 (aiokafka tells nobody)
            await anyio.sleep(0.01)
    await anyio.sleep(0.5)
    assert coordinator.generation <= 0


async def _is_drained(member: Driver) -> None:
    """Until the group asks it for its partitions."""
    assignment = member.producer._assignment
    assert assignment is not None
    with anyio.fail_after(10):
        while not any(lane.draining for lane in assignment.lanes.values()):  # noqa: ASYNC110 (nor does the producer)
            await anyio.sleep(0.01)


@pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])
async def test_one_that_is_closed_while_it_joins_does_not_wait_for_the_group(
    kafka_server: KafkaServer, topic: str, static: bool
) -> None:
    settings = {"group_instance_id": "joins"} if static else {}
    async with keeping_the_group(kafka_server, topic) as member:
        before = _connections(kafka_server)
        joins = producer_on(kafka_server.bootstrap_servers, topic, topic, **settings)
        async with driving(joins) as driver:
            if static:
                await _is_drained(member)
            else:
                await _waits_for_the_group(joins)
            began = anyio.current_time()
        assert anyio.current_time() - began < 2
        assert _connections(kafka_server) == before
        assert (driver.seen, driver.error) == ([], None)


async def test_the_group_does_not_wait_for_one_that_was_closed_while_it_joined(
    kafka_server: KafkaServer, topic: str
) -> None:
    async with keeping_the_group(kafka_server, topic) as member:
        servers = kafka_server.bootstrap_servers
        # Its session would last for as long as the test waits for anything.
        joins = producer_on(servers, topic, topic, session_timeout_ms=40_000)
        async with driving(joins):
            await _waits_for_the_group(joins)
        member.resolve = lambda _: ACKED
        await member.advance_held()
        for partition in (0, 1):
            kafka_server.produce(topic, [f"later {partition}"], partition=partition)
        with anyio.fail_after(10):
            await member.settled(5)
        assert sorted(member.values) == ["a", "b", "c", "later 0", "later 1"]


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8, 13, 21])
async def test_one_that_is_closed_at_any_moment_of_its_start_leaves_nothing_behind(
    kafka_server: KafkaServer, topic: str, turns: int
) -> None:
    servers = kafka_server.bootstrap_servers
    first = producer_on(servers, topic, topic, session_timeout_ms=40_000)
    async with driving(first) as driver:
        with anyio.fail_after(10):
            while _coordinator(first) is None:
                await checkpoint()
        for _ in range(turns):
            # As many answers of the broker, about.
            await anyio.sleep(0.002)
        began = anyio.current_time()
    assert anyio.current_time() - began < 2
    assert _connections(kafka_server) == 0
    # Whatever the first one has advanced; the group does not wait for it.
    async with driving(producer_on(servers, topic, topic), everything) as after:
        with anyio.fail_after(10):
            await after.until(lambda: {*driver.values, *after.values} == {"a", "b", "c"})
