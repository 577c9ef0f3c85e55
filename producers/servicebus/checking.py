"""Checks that an entity exists and may be read, and describes its delivery; for `triggerer check`."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import anyio

from producers.servicebus.errors import RequiresSessions, guarded
from producers.servicebus.sdk import client as sdk
from producers.servicebus.sdk.thread import THREAD, join
from triggerer.abc import DeliveryFacts
from triggerer.errors import BrokerError

if TYPE_CHECKING:
    from azure.servicebus.management import QueueProperties, SubscriptionProperties

    from producers.servicebus.entity import EntityPath
    from producers.servicebus.settings import ServiceBusSettings


logger = logging.getLogger(__name__)

_ASKING_S: Final = 3.0
_FOR_EVER: Final = timedelta(days=10_000)
"""A time to live of this length or more counts as none. If none is set, Service Bus returns 10,675,199 days."""


async def check_entity(settings: ServiceBusSettings, entity: EntityPath) -> None:
    """Check that the entity can be read, by attaching a receiver. Without credit, the receiver locks no message.

    The caller sets a deadline.

    Raises:
        ConfigurationError: The settings do not allow this entity: see `ServiceBusSettings.check_entity`.
        BrokerRefused: The credentials are refused, or the entity does not exist or may not be read.
        BrokerUnavailable: Service Bus does not answer.
    """
    THREAD.acquire()
    try:
        await join(THREAD.start(_attach(settings, entity)))
    finally:
        await THREAD.release()


async def describe_delivery(
    settings: ServiceBusSettings, entity: EntityPath, *, ask: bool, verify: bool | str = True
) -> DeliveryFacts:
    """Return how messages are delivered, from the settings and, if `ask`, from the entity.

    Only users with the right to manage the entity get its retention, lock duration and delivery limit from the
    management API. For other users these facts are unknown, but the guarantee of a watcher does not depend on them.

    Args:
        verify: A file with the certificate authorities to trust. True: the system's certificate authorities.
    """
    found = None
    if ask and not settings.is_emulator:
        with anyio.move_on_after(_ASKING_S):
            found = await _look_up(settings, entity, verify)
    limits = [settings.max_deliveries, None if found is None else found.max_delivery_count]
    return DeliveryFacts(
        is_acknowledged=True,
        because="messages are completed after their events are durable",
        key="entity, sequence number and time of storage",
        retention=None if found is None else _retention(found),
        redelivers_after=None if found is None else _duration(found.lock_duration),
        is_renewed=True,
        # A failed message of a dead-letter queue comes again without a limit.
        drops_after=None
        if entity.is_dead_letter_queue
        else min((limit for limit in limits if limit), default=None),
        # Every entity has a dead-letter queue, except a dead-letter queue itself.
        has_dead_letters=not entity.is_dead_letter_queue,
        # Service Bus ignores case in names, so the source is in lower case.
        source=f"{entity.described.lower()} at {settings.host.lower()}",
    )


async def _look_up(
    settings: ServiceBusSettings, entity: EntityPath, verify: bool | str
) -> QueueProperties | SubscriptionProperties | None:
    # Imported here: the import of the management client takes a tenth of a second, and a stream does not need it.
    from producers.servicebus.administration import ask_administration

    async def ask(client: Any) -> Any:
        if entity.subscription is not None:
            return await client.get_subscription(entity.name, entity.subscription)
        return await client.get_queue(entity.name)

    what = f"looking at {entity.described} at {settings.host}"
    try:
        return await ask_administration(settings, entity, ask, what=what, verify=verify)
    except BrokerError as error:
        # Only log the error, because another check finds out whether the entity can be read.
        logger.debug("%s", error)
        return None


def _retention(found: QueueProperties | SubscriptionProperties) -> timedelta | None:
    """Return the time after which the entity drops messages. None: it never drops them, or it dead-letters them."""
    if found.dead_lettering_on_message_expiration:
        return None
    kept = _duration(found.default_message_time_to_live)
    return None if kept is None or kept >= _FOR_EVER else kept


def _duration(value: timedelta | str | None) -> timedelta | None:
    # Service Bus answers with a `timedelta`. The SDK's type also allows a string, for values that a caller sets.
    return value if isinstance(value, timedelta) else None


async def _attach(settings: ServiceBusSettings, entity: EntityPath) -> None:
    client = sdk.Client(settings)
    receiver = client.receiver(entity)
    try:
        what = f"reading {entity.described} at {settings.host}"
        await guarded(sdk.open_receiver(receiver), what, entity)
    except RequiresSessions:
        # The check succeeds: Service Bus demands a session only if the entity exists and may be read.
        return
    finally:
        await sdk.close(receiver)
        await client.aclose()
