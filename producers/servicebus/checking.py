"""Checks that an entity is there and may be read, and says what becomes of a message; for `triggerer check`."""

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
"""The service states the longest time there is where no time to live is set: 10,675,199 days."""


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


async def describe_delivery(
    settings: ServiceBusSettings, entity: EntityPath, *, ask: bool, verify: bool | str = True
) -> DeliveryFacts:
    """What becomes of a message, from the settings and, if `ask`, from the entity.

    The entity tells it to who may manage it. Who may only listen, and who cannot reach the management API, is promised
    the same, and is warned of less.

    Args:
        verify: As for `ask_administration`.
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
        # A dead letter that fails comes again.
        drops_after=None
        if entity.is_dead_letter_queue
        else min((limit for limit in limits if limit), default=None),
        # Each entity has a dead-letter queue, but for that itself.
        has_dead_letters=not entity.is_dead_letter_queue,
        # Their names are not case-sensitive.
        source=f"{entity.described.lower()} at {settings.host.lower()}",
    )


async def _look_up(
    settings: ServiceBusSettings, entity: EntityPath, verify: bool | str
) -> QueueProperties | SubscriptionProperties | None:
    # Not at the top: it takes a tenth of a second to import, and a stream needs none of it.
    from producers.servicebus.administration import ask_administration

    async def ask(client: Any) -> Any:
        if entity.subscription is not None:
            return await client.get_subscription(entity.name, entity.subscription)
        return await client.get_queue(entity.name)

    what = f"looking at {entity.described} at {settings.host}"
    try:
        return await ask_administration(settings, entity, ask, what=what, verify=verify)
    except BrokerError as error:
        # Whether it can be read is asked elsewhere, by the way that reading takes.
        logger.debug("%s", error)
        return None


def _retention(found: QueueProperties | SubscriptionProperties) -> timedelta | None:
    """How long a message is kept; None: for ever, or it is dead-lettered then."""
    if found.dead_lettering_on_message_expiration:
        return None
    kept = _duration(found.default_message_time_to_live)
    return None if kept is None or kept >= _FOR_EVER else kept


def _duration(value: timedelta | str | None) -> timedelta | None:
    # As a text only where somebody has set it.
    return value if isinstance(value, timedelta) else None


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
