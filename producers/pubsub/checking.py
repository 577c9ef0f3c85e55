"""Checks that a subscription can be read, without receiving a message; for `triggerer check`."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import anyio
import grpc

from producers.pubsub.connecting import Access, Connection, find_access
from producers.pubsub.errors import code_of, guarded
from triggerer.abc import DeliveryFacts
from triggerer.errors import BrokerError, BrokerRefused

if TYPE_CHECKING:
    from producers.pubsub.settings import PubSubSettings

_TIMEOUT_S: Final = 4.0
_CLOSE_TIMEOUT_S: Final = 2.0
_NO_ACK_ID: Final = "triggerer-check"
_DELETED_TOPIC: Final = "_deleted-topic_"


async def check_subscription(settings: PubSubSettings, subscription: str) -> None:
    """Connect, and look the subscription up.

    Raises:
        ConfigurationError: The credentials cannot be used, or no project is known.
        BrokerRefused: There is no such subscription, this account may not read it, it is no pull subscription, or it
            has lost its topic. Or the subscription's topic is also `dead_letter_topic`.
        BrokerUnavailable: Pub/Sub does not answer.
    """
    access, path, found = await _look_up(settings, subscription)
    if found is None:
        return
    what = f"{path} at {settings.where}"
    for place in (
        found.push_config.push_endpoint,
        found.bigquery_config.table,
        found.cloud_storage_config.bucket,
    ):
        if place:
            raise BrokerRefused(
                f"{what} pushes its messages to {place}",
                hint="only a pull subscription can be read",
            )
    if found.detached or found.topic == _DELETED_TOPIC:
        raise BrokerRefused(
            f"{what} is no longer attached to a topic",
            hint="its topic was deleted, or the subscription was detached: create a new subscription",
        )
    if settings.dead_letter_topic:
        topic = access.path("topics", settings.dead_letter_topic)
        if topic == found.topic:
            raise BrokerRefused(
                f"dead_letter_topic is {topic}, the topic of {path}",
                hint="a dead letter would come again at once: name another topic",
            )


async def describe_delivery(
    settings: PubSubSettings, subscription: str, *, ask: bool
) -> DeliveryFacts:
    """Return how messages are delivered, from the settings and, if `ask`, from the subscription.

    Raises:
        The errors of `check_subscription`, only with `ask`.
    """
    found: Any = None
    path: str | None = None
    if ask:
        _, path, found = await _look_up(settings, subscription)
    retention = None if found is None else found.message_retention_duration
    limits = [settings.max_deliveries] if settings.dead_letter_topic else []
    policy = None if found is None else found.dead_letter_policy
    if policy:
        limits.append(policy.max_delivery_attempts)
    drops_after = min((limit for limit in limits if limit), default=None)
    has_dead_letters = None
    if settings.dead_letter_topic or policy:
        has_dead_letters = True
    elif found is not None:
        has_dead_letters = False
    return DeliveryFacts(
        is_acknowledged=True,
        because="messages are acknowledged after their events are durable",
        key="subscription, message id and time of publication",
        retention=retention or None,
        redelivers_after=timedelta(seconds=settings.ack_deadline_s or settings.min_ack_deadline_s),
        is_renewed=True,
        renewed_for=timedelta(seconds=settings.max_extension_s),
        drops_after=drops_after,
        has_dead_letters=has_dead_letters,
        dead_letter_setting="dead_letter_topic",
        source=path,
    )


async def _look_up(settings: PubSubSettings, subscription: str) -> tuple[Access, str, Any]:
    """Return the credentials, the subscription's path and its description.

    The description is None if this account may not see it, but may read the subscription.
    """
    access = await find_access(settings)
    path = access.path("subscriptions", subscription)
    what = f"{path} at {settings.where}"
    connection = Connection(settings, access)
    try:
        found = await guarded(
            connection.subscriber.get_subscription(
                subscription=path, retry=None, timeout=_TIMEOUT_S
            ),
            what,
        )
        return access, path, found
    except BrokerError as error:
        if code_of(error.__cause__ or error) is not grpc.StatusCode.PERMISSION_DENIED:
            raise
        # Some accounts may read a subscription, but may not see its description. Check that this account may read.
        await _try_to_consume(connection, path, what)
        return access, path, None
    finally:
        with anyio.move_on_after(_CLOSE_TIMEOUT_S, shield=True):
            await connection.aclose()


async def _try_to_consume(connection: Connection, path: str, what: str) -> None:
    """Check that this account may read, by extending a lease that does not exist. This changes nothing."""
    try:
        await guarded(
            connection.subscriber.modify_ack_deadline(
                subscription=path,
                ack_ids=[_NO_ACK_ID],
                ack_deadline_seconds=10,
                retry=None,
                timeout=_TIMEOUT_S,
            ),
            what,
        )
    except BrokerRefused as error:
        if code_of(error.__cause__ or error) is not grpc.StatusCode.INVALID_ARGUMENT:
            raise
