"""Checks that an entity is there and may be read, and says what becomes of a message; for `triggerer check`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from producers.servicebus import sdk
from producers.servicebus.errors import RequiresSessions, guarded
from producers.servicebus.sdk_thread import THREAD, join
from triggerer.abc import DeliveryFacts

if TYPE_CHECKING:
    from producers.servicebus.entity import EntityPath
    from producers.servicebus.settings import ServiceBusSettings


async def check_entity(settings: ServiceBusSettings, entity: EntityPath) -> None:
    """Attach a receiver without credit: nothing is locked. Has no deadline of its own.

    Raises:
        BrokerRefused: The credentials are refused, the entity does not exist or may not be read.
        BrokerUnavailable: Nobody answers.
    """
    THREAD.acquire()
    try:
        await join(THREAD.start(_attach(settings, entity)))
    finally:
        await THREAD.release()


def describe_delivery(settings: ServiceBusSettings) -> DeliveryFacts:
    """What becomes of a message, as far as the settings tell: who may only listen cannot ask for an entity's own."""
    return DeliveryFacts(
        is_acknowledged=True,
        because="messages are completed after their events are durable",
        key="entity, sequence number and time of storage",
        is_renewed=True,
        drops_after=settings.max_deliveries or None,
        # Each entity has a dead-letter queue.
        has_dead_letters=True,
    )


async def _attach(settings: ServiceBusSettings, entity: EntityPath) -> None:
    client = sdk.Client(settings)
    receiver = client.receiver(entity)
    try:
        what = f"reading {entity.described} at {settings.host}"
        await guarded(sdk.open_receiver(receiver), what, entity)
    except RequiresSessions:
        # It is there, and we are let in.
        return
    finally:
        await sdk.close(receiver)
        await client.aclose()
