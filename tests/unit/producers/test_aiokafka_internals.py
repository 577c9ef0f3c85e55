"""aiokafka still has each private attribute that `producers.kafka.wire.internals` touches, with the same meaning."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.client import AIOKafkaClient
from aiokafka.consumer.fetcher import Fetcher
from aiokafka.consumer.group_coordinator import GroupCoordinator, NoGroupCoordinator
from aiokafka.consumer.subscription_state import SubscriptionState
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.metadata import MetadataRequest

from producers.kafka.wire import internals


@pytest.fixture
async def consumer() -> AsyncIterator[AIOKafkaConsumer]:
    """A consumer with the parts that `start` would make, without a broker."""
    made = AIOKafkaConsumer(bootstrap_servers="localhost:1", group_id="g")
    made._closed = True  # nothing was connected
    client: Any = internals.client_of(made)
    subscription = SubscriptionState()
    assert internals.coordinator_of(made) is None
    internals.set_fetch_wait(made, 100)
    made._coordinator = GroupCoordinator(client, subscription, group_id="g")
    made._fetcher = Fetcher(client, subscription)
    yield made
    for task in internals.unfinished_tasks(made):
        task.cancel()
        await asyncio.wait([task])


async def test_a_consumer_has_a_client_and_a_coordinator(consumer: AIOKafkaConsumer) -> None:
    assert isinstance(internals.client_of(consumer), AIOKafkaClient)
    assert isinstance(internals.coordinator_of(consumer), GroupCoordinator)


async def test_metadata_is_asked_over_a_connection_and_may_forbid_to_create_topics() -> None:
    assert {"_get_conn", "send"} <= set(AIOKafkaClient._metadata_update.__code__.co_names)
    assert "_allow_auto_topic_creation" in vars(MetadataRequest(["t"]))


async def test_a_fetch_is_sent_with_the_wait_that_was_set(consumer: AIOKafkaConsumer) -> None:
    internals.set_fetch_wait(consumer, 123)
    # When the fetcher builds a request, it takes the wait from this attribute alone.
    assert "_fetch_max_wait_ms" in Fetcher._get_actions_per_node.__code__.co_names
    assert vars(consumer._fetcher)["_fetch_max_wait_ms"] == 123


async def test_the_background_tasks_are_found_until_they_end(consumer: AIOKafkaConsumer) -> None:
    names = {task.get_coro().__name__ for task in internals.unfinished_tasks(consumer)}  # type: ignore[union-attr]
    assert names == {"_coordination_routine", "_fetch_requests_routine"}
    coordinator: Any = consumer._coordinator
    # The other two exist while the group is joined.
    assert coordinator._heartbeat_task is coordinator._commit_refresh_task is None
    coordinator._heartbeat_task = beating = asyncio.create_task(asyncio.sleep(60))
    assert beating in internals.unfinished_tasks(consumer)


async def test_a_consumer_without_a_group_has_the_task_that_resets_commits() -> None:
    made = AIOKafkaConsumer(bootstrap_servers="localhost:1")
    made._closed = True  # nothing was connected
    made._coordinator = NoGroupCoordinator(internals.client_of(made), SubscriptionState())
    (task,) = internals.unfinished_tasks(made)
    assert task.get_coro().__name__ == "_reset_committed_routine"  # type: ignore[union-attr]
    task.cancel()
    await asyncio.wait([task])
    assert not internals.unfinished_tasks(made)


async def test_a_member_tells_whether_it_is_static_joining_or_closed(
    consumer: AIOKafkaConsumer,
) -> None:
    coordinator: Any = internals.coordinator_of(consumer)
    assert not internals.is_static_member(coordinator)
    assert not internals.is_joining(coordinator)
    # `ensure_active_group` sets it before the join, and resets it after the join.
    assert "_performed_join_prepare" in GroupCoordinator.ensure_active_group.__code__.co_names
    assert not internals.closing_of(coordinator).done()
    await coordinator.close()
    assert internals.closing_of(coordinator).done()
    static = GroupCoordinator(
        internals.client_of(consumer), SubscriptionState(), group_id="g", group_instance_id="one"
    )
    assert internals.is_static_member(static)
    await static.close()


async def test_every_request_to_the_coordinator_goes_through_the_wrapped_send(
    consumer: AIOKafkaConsumer,
) -> None:
    coordinator: Any = internals.coordinator_of(consumer)
    originals = []

    def wrap(send: Any) -> Any:
        originals.append(send)

        async def answer(request: Any) -> Any:
            return f"answer to {request}"

        return answer

    internals.wrap_send(coordinator, wrap)
    assert originals == [GroupCoordinator._send_req.__get__(coordinator)]
    assert await internals.send_to_coordinator(coordinator, "a join") == "answer to a join"


def test_a_fetch_request_keeps_the_fields_that_it_was_made_with() -> None:
    request = FetchRequest(500, 1, 1_000, 1, [], rack_id="a")
    assert internals.fields_of(request) == (500, 1, 1_000, 1, "a")
    internals.set_max_wait(request, 20)
    assert internals.fields_of(request).max_wait_ms == 20


async def test_a_producer_whose_sender_has_ended_has_failed_for_good() -> None:
    producer = AIOKafkaProducer(bootstrap_servers="localhost:1")
    producer._closed = True  # nothing was connected
    sender: Any = producer._sender
    sender._sender_task = task = asyncio.create_task(asyncio.sleep(60))
    assert not internals.has_failed_for_good(producer)
    task.cancel()
    await asyncio.wait([task])
    assert internals.has_failed_for_good(producer)
