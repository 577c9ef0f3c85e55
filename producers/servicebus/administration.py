"""Sends requests to the management API over HTTPS. The connection needs the right to manage the entity."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeVar

from azure.core.exceptions import AzureError, HttpResponseError, ResourceNotFoundError
from azure.servicebus.aio.management import ServiceBusAdministrationClient

from producers.servicebus.errors import translate
from producers.servicebus.sdk import client as sdk
from triggerer.errors import BrokerError, BrokerRefused, BrokerUnavailable
from triggerer.pluginkit.guarding import guarded

if TYPE_CHECKING:
    from producers.servicebus.entity import EntityPath
    from producers.servicebus.settings import ServiceBusSettings

T = TypeVar("T")

_SDK_ERRORS: Final = (AzureError, OSError, TimeoutError, ValueError)


async def ask_administration(
    settings: ServiceBusSettings,
    entity: EntityPath,
    ask: Callable[[ServiceBusAdministrationClient], Awaitable[T]],
    *,
    what: str,
    verify: bool | str = True,
) -> T:
    """Ask the management API about an entity.

    Args:
        what: The request, for the beginning of error texts.
        verify: A file with the certificate authorities to trust. True: the system's certificate authorities.
    Raises:
        BrokerRefused: There is no such entity, or the policy or identity may not manage it.
        BrokerUnavailable: The namespace does not answer.
    """
    credential = None if settings.connection_string else sdk.default_credential(settings)
    try:
        client = _open(settings, credential, connection_verify=verify, retry_total=0)
        async with client:
            return await guarded(
                ask(client),
                what,
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


def _translate(error: BaseException, what: str, entity: EntityPath) -> BrokerError:
    status = error.status_code if isinstance(error, HttpResponseError) else None
    if isinstance(error, ResourceNotFoundError) or status == HTTPStatus.NOT_FOUND:
        return BrokerRefused(
            f"{what}: there is no {entity.described}", hint=f"create it: {entity.how_to_create}"
        )
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return BrokerRefused(
            f"{what}: not allowed ({status})",
            hint="the policy or identity needs Manage for this request (role: Azure Service Bus Data Owner);"
            " reading messages does not need it",
        )
    if status is not None:
        return BrokerUnavailable(f"{what}: Service Bus answered {status}")
    translated = translate(error, what, entity)
    if isinstance(translated, BrokerUnavailable):
        return BrokerUnavailable(
            f"{what}: {error}",
            hint="is the namespace's name right, and does the network let port 443 through?",
        )
    return translated
