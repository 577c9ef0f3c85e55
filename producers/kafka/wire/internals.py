"""All uses of aiokafka's private attributes in this package.

aiokafka has no public names for these attributes. `tests/unit/producers/test_aiokafka_internals.py` fails if a version
of aiokafka removes or renames one.
"""
# ruff: noqa: SLF001

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.metadata import MetadataRequest

# A consumer


def client_of(consumer: AIOKafkaConsumer) -> Any:
    """Return the client, which has the connections to the brokers."""
    return consumer._client


def coordinator_of(consumer: AIOKafkaConsumer) -> Any:
    """Return the part that keeps the group's membership; None before the consumer has started."""
    return consumer._coordinator


def create_no_topics(consumer: AIOKafkaConsumer) -> None:
    """Keep the consumer's metadata requests from creating topics. Call this before the consumer starts.

    By default (`auto.create.topics.enable`), Kafka creates each missing topic that a metadata request names. So if a
    topic is deleted while the consumer reads it, the topic would come back, with another number of partitions.
    """
    client: Any = consumer._client
    get_connection = client._get_conn

    async def get_guarded(*arguments: Any, **options: Any) -> Any:
        connection = await get_connection(*arguments, **options)
        # The client returns a connection to many callers. Replace the connection's method only the first time.
        if connection is not None and "send" not in vars(connection):
            connection.send = _without_creation(connection.send)
        return connection

    client._get_conn = get_guarded


def _without_creation(send: Callable[..., Any]) -> Callable[..., Any]:
    def send_guarded(request: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(request, MetadataRequest):
            request._allow_auto_topic_creation = False
        return send(request, *arguments, **options)

    return send_guarded


def set_fetch_wait(consumer: AIOKafkaConsumer, wait_ms: int) -> None:
    """Set how long brokers may delay the answers to the next fetches. Does nothing if the consumer has not started."""
    fetcher: Any = consumer._fetcher
    if fetcher is not None:
        fetcher._fetch_max_wait_ms = wait_ms


def unfinished_tasks(consumer: AIOKafkaConsumer) -> set[asyncio.Task[Any]]:
    """Return the consumer's background tasks that still run."""
    coordinator, fetcher = consumer._coordinator, consumer._fetcher
    # A consumer without a group has only the last of these tasks.
    names = (
        "_coordination_task",
        "_heartbeat_task",
        "_commit_refresh_task",
        "_reset_committed_task",
    )
    tasks: set[asyncio.Task[Any] | None] = {getattr(coordinator, name, None) for name in names}
    if fetcher is not None:
        tasks |= {fetcher._fetch_task, *fetcher._pending_tasks}
    return {task for task in tasks if task is not None and not task.done()}


# A group's coordinator


def is_static_member(coordinator: Any) -> bool:
    """Whether the member has a `group_instance_id`."""
    return coordinator._group_instance_id is not None


def is_joining(coordinator: Any) -> bool:
    """Whether the member is joining its group. The coordinator must have a group."""
    joining: bool = coordinator._performed_join_prepare
    return joining


def closing_of(coordinator: Any) -> asyncio.Future[None]:
    """Return the future that is done once the closing of the member has begun."""
    closing: asyncio.Future[None] = coordinator._closing
    return closing


async def send_to_coordinator(coordinator: Any, request: Any) -> Any:
    """Send a request to the group's coordinator, which must be known, and return the answer."""
    return await coordinator._send_req(request)


def wrap_send(
    coordinator: Any,
    wrap: Callable[[Callable[[Any], Awaitable[Any]]], Callable[[Any], Awaitable[Any]]],
) -> None:
    """Replace the method that sends requests to the group's coordinator by `wrap` of that method."""
    coordinator._send_req = wrap(coordinator._send_req)


# A fetch request


class FetchFields(NamedTuple):
    """The fields of a fetch request, without its partitions; `rack_id` is empty if no rack is configured."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    rack_id: str


def fields_of(request: FetchRequest) -> FetchFields:
    """Return the fields of a fetch that aiokafka has built."""
    return FetchFields(
        request._max_wait_ms,
        request._min_bytes,
        request._max_bytes,
        request._isolation_level,
        request._rack_id,
    )


def set_max_wait(request: FetchRequest, wait_ms: int) -> None:
    """Set how long the broker may delay the answer to this fetch while it has no message."""
    request._max_wait_ms = wait_ms


# A producer


def has_failed_for_good(producer: AIOKafkaProducer) -> bool:
    """Whether the task that sends messages has ended. Then every call of the producer raises an error."""
    ended: bool = producer._sender.sender_task.done()
    return ended
