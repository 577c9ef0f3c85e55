"""Asks the management API how many messages wait in an entity; for `triggerer watchers … --lag`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from producers.servicebus.administration import ask_administration
from triggerer.abc import SourceLag

if TYPE_CHECKING:
    from azure.servicebus.aio.management import ServiceBusAdministrationClient

    from producers.servicebus.entity import EntityPath
    from producers.servicebus.settings import ServiceBusSettings


async def measure_lag(
    settings: ServiceBusSettings, entity: EntityPath, *, verify: bool | str = True
) -> SourceLag:
    """Return the number of waiting and locked messages, and a note about scheduled messages.

    For the emulator, the number is unknown: its management API has only plain HTTP, and the client
    library needs HTTPS.

    Args:
        verify: A file with the certificate authorities to trust. True: the system's certificate authorities.
    Raises:
        BrokerRefused: There is no such entity, or the policy or identity may not manage it.
        BrokerUnavailable: The namespace does not answer.
    """
    if settings.is_emulator:
        return SourceLag(
            None, note="the emulator's management API lacks HTTPS, which the client library needs"
        )
    return await ask_administration(
        settings,
        entity,
        lambda client: _ask(client, entity),
        what=f"asking for the length of {entity.described} at {settings.host}",
        verify=verify,
    )


async def _ask(client: ServiceBusAdministrationClient, entity: EntityPath) -> SourceLag:
    if entity.subscription is not None:
        found = await client.get_subscription_runtime_properties(entity.name, entity.subscription)
        return SourceLag(found.active_message_count)
    queue = await client.get_queue_runtime_properties(entity.name)
    scheduled = queue.scheduled_message_count
    note = f"{scheduled} more are scheduled for later" if scheduled else None
    return SourceLag(queue.active_message_count, note=note)
