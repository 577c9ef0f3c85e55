"""If a consumer is closed during a rebalance, neither the consumer nor its group waits for the other."""

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.group import JoinGroupRequest

from producers.kafka import KafkaMessage
from producers.kafka.connection import connecting
from tests.brokers.kafka.driving import (
    ACKED,
    Driver,
    connections_to,
    driving,
    everything,
    producer_on,
)
from tests.services.brokers.kafka import KafkaServer
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
    """Run a member that resolves no message. A rebalance waits `GROUP_WAITS_S` for it."""

    def nothing(_: KafkaMessage) -> AdvanceOutcome | None:
        return None

    settings = {"revoke_timeout_s": GROUP_WAITS_S, "session_timeout_ms": 30_000, **settings}
    producer = producer_on(server.bootstrap_servers, topic, topic, **settings)
    async with driving(producer, nothing) as member:
        await member.count(3)
        yield member


async def _is_drained(member: Driver) -> None:
    """Wait until this member must give up its partitions, because another member joins the group."""
    with anyio.fail_after(10):
        while not any(message.lane.draining for message in member.seen):  # noqa: ASYNC110 (it sends no notice)
            await anyio.sleep(0.01)


@pytest.fixture
def cut_off(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A list that gets each consumer that is aborted, because it did not leave its group in time."""
    consumers: list[Any] = []
    abort = connecting.abort_consumer

    async def note(consumer: Any) -> None:
        consumers.append(consumer)
        await abort(consumer)

    monkeypatch.setattr(connecting, "abort_consumer", note)
    return consumers


@pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])
async def test_one_that_is_closed_while_it_joins_does_not_wait_for_the_group(
    kafka_server: KafkaServer, topic: str, static: bool, cut_off: list[Any]
) -> None:
    settings = {"group_instance_id": "joins"} if static else {}
    async with keeping_the_group(kafka_server, topic) as member:
        before = connections_to(kafka_server)
        joins = producer_on(kafka_server.bootstrap_servers, topic, topic, **settings)
        async with driving(joins) as driver:
            await _is_drained(member)
        assert cut_off == []
        assert connections_to(kafka_server) == before
        assert (driver.seen, driver.error) == ([], None)


async def test_the_group_does_not_wait_for_one_that_was_closed_while_it_joined(
    kafka_server: KafkaServer, topic: str
) -> None:
    async with keeping_the_group(kafka_server, topic) as member:
        servers = kafka_server.bootstrap_servers
        # The group must not wait for this member's session, which outlasts every timeout of the test.
        joins = producer_on(servers, topic, topic, session_timeout_ms=40_000)
        async with driving(joins):
            await _is_drained(member)
        member.resolve = lambda _: ACKED
        await member.advance_waiting()
        for partition in (0, 1):
            kafka_server.produce(topic, [f"later {partition}"], partition=partition)
        with anyio.fail_after(10):
            await member.settled(5)
        assert sorted(member.values) == ["a", "b", "c", "later 0", "later 1"]


async def test_a_member_that_is_closed_while_it_joins_once_more_does_not_wait_for_the_group(
    kafka_server: KafkaServer,
    topic: str,
    cut_off: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    servers = kafka_server.bootstrap_servers
    joining: set[Any] = set()
    send = AIOKafkaClient.send

    async def note(client: Any, node: Any, request: Any, **options: Any) -> Any:
        if isinstance(request, JoinGroupRequest):
            joining.add(client)
        return await send(client, node, request, **options)

    monkeypatch.setattr(AIOKafkaClient, "send", note)
    async with driving(producer_on(servers, topic, topic), everything) as leaves:
        await leaves.settled(3)
        settings = {"revoke_timeout_s": GROUP_WAITS_S, "session_timeout_ms": 30_000}
        async with driving(producer_on(servers, topic, topic, **settings)) as stays:
            stays.resolve = lambda _: None
            with anyio.fail_after(20):
                while not stays.seen:
                    for partition in (0, 1):
                        kafka_server.produce(topic, ["later"], partition=partition)
                    await anyio.sleep(0.1)
            joining.clear()
            async with driving(producer_on(servers, topic, topic)):
                await _is_drained(stays)
                with anyio.fail_after(10):
                    # The new stream and `leaves` have asked to join. The group makes them wait until `stays` joins too.
                    while len(joining) < 2:  # noqa: ASYNC110 (the client sends no notice)
                        await anyio.sleep(0.01)
                await leaves.producer.aclose()
                assert cut_off == []


@pytest.mark.parametrize("requests", range(1, 13))
async def test_one_that_is_closed_at_any_moment_of_its_start_leaves_nothing_behind(
    kafka_server: KafkaServer,
    topic: str,
    requests: int,
    cut_off: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    servers = kafka_server.bootstrap_servers
    sent: list[str] = []
    is_time = anyio.Event()
    send = AIOKafkaClient.send

    async def note(client: Any, node: Any, request: Any, **options: Any) -> Any:
        sent.append(type(request).__name__)
        if len(sent) == requests:
            is_time.set()
        return await send(client, node, request, **options)

    monkeypatch.setattr(AIOKafkaClient, "send", note)
    first = producer_on(servers, topic, topic, session_timeout_ms=40_000)
    async with driving(first) as driver:
        with anyio.fail_after(10):
            await is_time.wait()
    assert cut_off == []
    assert connections_to(kafka_server) == 0
    # The next member must get all messages that the first member has not committed. If the first member were still in
    # the group, the next member would wait 40 s for the end of its session.
    async with driving(producer_on(servers, topic, topic), everything) as after:
        with anyio.fail_after(10):
            await after.until(lambda: {*driver.values, *after.values} == {"a", "b", "c"})
