"""Starts and stops a consumer, and finds out why a consumer cannot connect."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import anyio
from aiokafka import AIOKafkaConsumer
from aiokafka import errors as sdk
from aiokafka.conn import collect_hosts, create_conn
from aiokafka.protocol.group import JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest

from producers.kafka.errors import guarded, translate
from producers.kafka.wire.internals import (
    client_of,
    closing_of,
    coordinator_of,
    create_no_topics,
    is_static_member,
    unfinished_tasks,
    wrap_send,
)
from triggerer.errors import BrokerError, BrokerUnavailable

if TYPE_CHECKING:
    from producers.kafka.settings import KafkaSettings

logger = logging.getLogger(__name__)

_CLOSE_TIMEOUT_S = 5.0
_ABORT_TIMEOUT_S = 2.0
_GOODBYE_TIMEOUT_S = 2.0


async def start_consumer(consumer: AIOKafkaConsumer, settings: KafkaSettings, what: str) -> None:
    """Connect a consumer that will join a group.

    Raises:
        BrokerUnavailable, BrokerRefused: See `connect`.
    """
    await connect(consumer, settings, what)
    if settings.group_instance_id is not None:
        _end_when_replaced(consumer, settings.group_instance_id)
    _leave_while_joining(consumer)


async def connect(consumer: AIOKafkaConsumer, settings: KafkaSettings, what: str) -> None:
    """Start the consumer so that it creates no topics; if it cannot connect, raise the actual reason.

    Raises:
        BrokerUnavailable: No broker answers.
        BrokerRefused: A broker answers, and refuses the credentials or the protocol.
    """
    create_no_topics(consumer)
    try:
        with anyio.fail_after(settings.request_timeout_ms / 1000):
            await guarded(consumer.start(), what)
    except TimeoutError as error:
        raise BrokerUnavailable(
            f"{what}: no answer in {settings.request_timeout_ms / 1000:.0f} s",
            hint="is the broker running, and does security_protocol fit its listener?",
        ) from error
    except BrokerUnavailable as error:
        if isinstance(error.__cause__, sdk.KafkaConnectionError):
            await raise_reason(settings, what)
        raise


def _end_when_replaced(consumer: Any, instance: str) -> None:
    """Make a static member fail when another consumer joins with its `group_instance_id`.

    aiokafka's heartbeats lack this id, so the broker answers "unknown member" instead of "fenced". aiokafka would then
    join again and expel the other consumer, which would do the same. The group would rebalance at every heartbeat.
    """
    coordinator = coordinator_of(consumer)
    reset_generation = coordinator.reset_generation

    def reset_or_end() -> None:
        # Only a member that has joined and is not leaving can have been replaced.
        if coordinator.generation > 0 and not closing_of(coordinator).done():
            raise sdk.KafkaError(
                f"another consumer has taken over group_instance_id {instance!r} of this group,"
                " or the session has expired"
            )
        reset_generation()

    coordinator.reset_generation = reset_or_end


def _leave_while_joining(consumer: Any) -> None:
    """If the consumer is closed while it joins its group, let it leave the group at once.

    Otherwise the group would assign partitions to the closed consumer. These partitions would stay unread until the
    session expires.

    The leave request needs another connection. The broker may delay its answer to the join for seconds, and meanwhile
    reads no other request on that connection.
    """
    coordinator = coordinator_of(consumer)
    closing = closing_of(coordinator)

    def wrap(send_request: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
        async def send(request: Any) -> Any:
            if not isinstance(request, JoinGroupRequest | SyncGroupRequest):
                return await send_request(request)
            if not coordinator.member_id and not is_static_member(coordinator):
                # From Kafka 2.2 on, a join without a member id only requests an id (KIP-394). The broker answers at
                # once, and there is no membership to leave.
                return await send_request(request)
            with anyio.CancelScope() as scope:

                def give_up(_: object) -> None:
                    scope.cancel()

                closing.add_done_callback(give_up)
                try:
                    if not closing.done():
                        return await send_request(request)
                finally:
                    closing.remove_done_callback(give_up)
            await _leave_group(consumer)
            # aiokafka treats a `KafkaConnectionError` as a lost connection, after which a closed consumer does not join
            # again.
            raise sdk.KafkaConnectionError("closed while the group was joined")

        return send

    wrap_send(coordinator, wrap)


async def _leave_group(consumer: Any) -> None:
    coordinator = coordinator_of(consumer)
    # A static member does not leave: it stays a member until it starts again or its session expires.
    if not is_static_member(coordinator):
        request = LeaveGroupRequest(coordinator.group_id, coordinator.member_id)
        node = coordinator.coordinator_id
        with anyio.move_on_after(_GOODBYE_TIMEOUT_S):
            try:
                await client_of(consumer).send(node, request)
            except sdk.KafkaError as error:
                # Only log the error: without a leave request, the broker removes the member when its session expires.
                logger.info("group %s could not be left: %s", coordinator.group_id, error)
    # Forget the membership, so that the client sends no second leave request over the connection of the join.
    coordinator.reset_generation()


async def raise_reason(settings: KafkaSettings, what: str) -> None:
    """Connect to the first server, and raise the reason if that fails. The client itself reports no reason.

    Returns if the connection succeeds now. The caller then raises the client's own error.
    """
    arguments = settings.client_arguments()
    host, port, _ = collect_hosts(arguments.pop("bootstrap_servers"), randomize=False)[0]
    arguments.pop("metadata_max_age_ms")
    try:
        with anyio.fail_after(5):
            connection = await create_conn(host, port, **arguments)
        connection.close()
    except (sdk.KafkaError, OSError, TimeoutError, ValueError) as error:
        raise translate(error, what) from error


async def stop_consumer(consumer: AIOKafkaConsumer, what: str) -> None:
    """Leave the group and end all tasks and connections of the consumer within seconds, even if no broker answers.

    aiokafka's own `stop` cancels the consumer's tasks and awaits them. If a task was fetching from an unreachable
    broker, its `CancelledError` ends `stop` early. Then connections and tasks would stay open.
    """
    stopped = False
    try:
        with anyio.move_on_after(_CLOSE_TIMEOUT_S, shield=True):
            await guarded(consumer.stop(), f"closing of the {what}")
            stopped = True
    except BrokerError as error:
        # Only log the error: without a leave request, the broker removes the member when its session expires.
        logger.info("%s", error)
    finally:
        # `stop` took too long, or the client's own cancellation interrupted it. End the tasks that still run.
        if not stopped:
            with anyio.move_on_after(_ABORT_TIMEOUT_S, shield=True):
                await abort_consumer(consumer)


async def abort_consumer(consumer: Any) -> None:
    """Cancel the tasks of a consumer that could not leave in time, and close its connections."""
    left = unfinished_tasks(consumer)
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left)
    try:
        await guarded(client_of(consumer).close(), "closing of the connections")
    except BrokerError as error:
        # Only log the error: the consumer is not used again.
        logger.info("%s", error)
