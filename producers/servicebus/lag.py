"""How many messages wait in a queue or subscription, as the management API says; for `triggerer watchers … --lag`."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from azure.core.exceptions import AzureError, HttpResponseError, ResourceNotFoundError
from azure.servicebus.aio.management import ServiceBusAdministrationClient

from producers.servicebus import sdk
from producers.servicebus.errors import translate
from triggerer.abc import SourceLag
from triggerer.errors import BrokerError, BrokerRefused, BrokerUnavailable
from triggerer.pluginkit.guarding import guarded

if TYPE_CHECKING:
    from producers.servicebus.entity import EntityPath
    from producers.servicebus.settings import ServiceBusSettings

_SDK_ERRORS: Final = (AzureError, OSError, TimeoutError, ValueError)


async def measure_lag(
    settings: ServiceBusSettings, entity: EntityPath, *, verify: bool | str = True
) -> SourceLag:
    """The active messages: those that wait, and those that somebody has locked. Scheduled ones are told beside them.

    Unknown on the emulator: the client library asks the management API by HTTPS only, and the emulator's speaks plain
    HTTP on a port of its own.

    Args:
        verify: A file with the authorities to trust. True: the system's.
    Raises:
        BrokerRefused: There is no such entity, or the policy or identity may not manage it.
        BrokerUnavailable: The namespace does not answer.
    """
    if settings.is_emulator:
        return SourceLag(
            None, note="the emulator does not tell it by HTTPS, which the client library needs"
        )
    credential = None if settings.connection_string else sdk.default_credential(settings)
    try:
        client = _open(settings, credential, connection_verify=verify, retry_total=0)
        async with client:
            return await guarded(
                _ask(client, entity),
                f"asking for the length of {entity.described} at {settings.host}",
                translate=lambda error, what: _translate(error, what, entity),
                catch=_SDK_ERRORS,
            )
    finally:
        if credential is not None:
            await credential.close()


def _open(
    settings: ServiceBusSettings, credential: Any, **arguments: Any
) -> ServiceBusAdministrationClient:
    if settings.connection_string is not None:
        return ServiceBusAdministrationClient.from_connection_string(
            settings.connection_string, **arguments
        )
    assert settings.fully_qualified_namespace is not None
    return ServiceBusAdministrationClient(
        settings.fully_qualified_namespace, credential, **arguments
    )


async def _ask(client: ServiceBusAdministrationClient, entity: EntityPath) -> SourceLag:
    if entity.subscription is not None:
        found = await client.get_subscription_runtime_properties(entity.name, entity.subscription)
        return SourceLag(found.active_message_count)
    queue = await client.get_queue_runtime_properties(entity.name)
    scheduled = queue.scheduled_message_count
    note = f"{scheduled} more are scheduled for later" if scheduled else None
    return SourceLag(queue.active_message_count, note=note)


def _translate(error: BaseException, what: str, entity: EntityPath) -> BrokerError:
    status = error.status_code if isinstance(error, HttpResponseError) else None
    if isinstance(error, ResourceNotFoundError) or status == HTTPStatus.NOT_FOUND:
        return BrokerRefused(
            f"{what}: there is no {entity.described}", hint=f"create it: {entity.how_to_create}"
        )
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return BrokerRefused(
            f"{what}: not allowed ({status})",
            hint="the policy or identity needs Manage for that (role: Azure Service Bus Data Owner); reading does not",
        )
    if status is not None:
        return BrokerUnavailable(f"{what}: the service answered {status}")
    translated = translate(error, what, entity)
    if isinstance(translated, BrokerUnavailable):
        return BrokerUnavailable(
            f"{what}: {error}",
            hint="is the namespace's name right, and does the network let port 443 through?",
        )
    return translated
