"""Checks that an entity is there and may be read; for `triggerer check`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from producers.servicebus import sdk
from producers.servicebus.errors import RequiresSessions, guarded
from producers.servicebus.sdk_thread import THREAD, join

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
