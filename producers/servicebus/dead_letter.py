"""Sends a message to the connection's `dead_letter_queue`, after the lock on the message has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
from azure.servicebus import ServiceBusMessage

from producers.servicebus.entity import EntityPath
from producers.servicebus.errors import guarded
from producers.servicebus.sdk import client as sdk
from triggerer.errors import BrokerUnavailable

if TYPE_CHECKING:
    from producers.servicebus.settings import ServiceBusSettings
    from triggerer.abc import BrokerMessage

_SEND_TIMEOUT_S = 20.0
_PROPERTIES = "triggerer.dead-letter."


async def send_to(settings: ServiceBusSettings, event: BrokerMessage, reason: str) -> None:
    """Send a copy of the message. The copy has the reason and the message's origin in its properties.

    Call this only on `sdk.thread.THREAD`.

    Raises:
        BrokerUnavailable: It is unknown whether the copy was sent.
        BrokerRefused: The copy was not sent.
    """
    assert settings.dead_letter_queue is not None
    entity = EntityPath(settings.dead_letter_queue)
    what = f"sending to {entity.described} at {settings.host}"
    position = event.position
    properties: dict[str | bytes, Any] = {
        f"{_PROPERTIES}reason": reason,
        f"{_PROPERTIES}entity": str(position.get("entity")),
        f"{_PROPERTIES}sequence-number": str(position.get("sequence_number")),
    }
    for name, value in event.attributes.items():
        properties.setdefault(name, value)
    message = ServiceBusMessage(
        event.value or b"",
        session_id=position.get("session_id"),
        message_id=position.get("message_id"),
        subject=position.get("subject"),
        correlation_id=position.get("correlation_id"),
        content_type=position.get("content_type"),
        application_properties=properties,
    )
    client = sdk.Client(settings)
    try:
        with anyio.fail_after(_SEND_TIMEOUT_S):
            sender = client.sender(settings.dead_letter_queue)
            try:
                await guarded(sdk.cancelled_once(sender.send_messages(message)), what, entity)
            finally:
                await sdk.close_sender(sender)
    except TimeoutError as error:
        raise BrokerUnavailable(f"{what}: no answer in {_SEND_TIMEOUT_S:.0f} s") from error
    finally:
        await client.aclose()
