"""Translates the SDK's errors into the project's; every call into the SDK is awaited through `guarded`."""

from __future__ import annotations

import re
from collections.abc import Awaitable
from typing import Final, TypeVar

from azure.core.exceptions import AzureError, ClientAuthenticationError
from azure.servicebus import exceptions as sdk

from producers.servicebus.entity import EntityPath
from triggerer.errors import BrokerError, BrokerRefused, BrokerUnavailable
from triggerer.pluginkit import guarding

T = TypeVar("T")

_SDK_ERRORS: Final = (AzureError, OSError, TimeoutError, ValueError, AttributeError, RuntimeError)
# The SDK raises ValueError if a receiver was shut down, or if the broker's AMQP frame `attach` names no source. The SDK
# raises AttributeError or RuntimeError if the connection ends during a call.

_TRACKING: Final = re.compile(
    r"\s*(TrackingId|Reference|SystemTracker|Timestamp):\S+|\s*For more information.*$"
)


class RequiresSessions(BrokerRefused):
    """The entity requires sessions: it must be read session by session."""


def translate(error: BaseException, what: str, entity: EntityPath) -> BrokerError:
    """Return the project's error for an SDK error; the caller raises it `from` the original.

    Args:
        what: The beginning of the error's text, such as "stream of queue 'orders' at example.servicebus.windows.net".
    """
    text = f"{what}: {_reason(error)}"
    if isinstance(error, sdk.MessagingEntityNotFoundError):
        return BrokerRefused(
            f"{what}: there is no {entity.described}", hint=f"create it: {entity.how_to_create}"
        )
    if isinstance(error, sdk.ServiceBusAuthorizationError) and "expired" in text.lower():
        return BrokerRefused(
            text,
            hint="replace the SharedAccessSignature in connection_string, or check the identity and the clock",
        )
    if isinstance(error, sdk.ServiceBusAuthorizationError):
        return BrokerRefused(
            text,
            hint="the policy or identity needs Listen on the entity (role: Azure Service Bus Data Receiver)",
        )
    if isinstance(error, sdk.ServiceBusAuthenticationError):
        return BrokerRefused(
            text,
            hint="check the key in connection_string, or the identity, and this machine's clock",
        )
    if isinstance(error, ClientAuthenticationError):
        return BrokerRefused(
            text,
            hint="no credential of the default chain works here: managed identity, AZURE_* variables, az login",
        )
    if isinstance(error, sdk.MessagingEntityDisabledError):
        return BrokerRefused(text, hint="enable the entity; it is disabled for receivers")
    if "requires sessions" in str(error) or "requires sessions" in text:
        return RequiresSessions(text)
    if isinstance(error, sdk.ServiceBusQuotaExceededError):
        return BrokerUnavailable(text, hint="the namespace has no room for another connection")
    if isinstance(error, sdk.ServiceBusServerBusyError):
        return BrokerUnavailable(text, hint="the namespace is throttled")
    if "auto-forwarding" in text.lower():
        return BrokerRefused(text, hint="read the entity to which it forwards")
    if "amqp:not-allowed" in text:
        # Service Bus has answered, so a hint about the network would be wrong.
        return BrokerUnavailable(text)
    return BrokerUnavailable(
        text, hint="is the namespace's name right, and does the network let port 5671 through?"
    )


def _reason(error: BaseException) -> str:
    """Return the useful part of an SDK error's text."""
    inner = getattr(error, "inner_exception", None)
    text = str(error)
    if text.startswith("Service Bus has encountered an error") and inner is not None:
        text = str(inner)
    text = _TRACKING.sub("", " ".join(text.split()))
    return text or type(error).__name__


async def guarded(call: Awaitable[T], what: str, entity: EntityPath) -> T:
    """Await a call into the SDK and translate its errors.

    Raises:
        BrokerUnavailable, BrokerRefused: See `translate`, and `triggerer.pluginkit.guarding`.
    """
    return await guarding.guarded(
        call,
        what,
        translate=lambda error, what: translate(error, what, entity),
        catch=_SDK_ERRORS,
    )
