"""Makes the event, its lane and its key from a message of Service Bus."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from producers.servicebus.entity import EntityPath
from triggerer.abc import BrokerMessage
from triggerer.pluginkit.texts import text_of

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusReceivedMessage

Lane = tuple[str, str | int]


class Holder(Protocol):
    """The holder of messages' locks: a `Link`.

    Attributes:
        is_given_back: True from the moment at which a message of the holder's session has failed. The session is then
            closed, and its messages come again as other deliveries. The event loop and the SDK's thread set this value.
    """

    is_given_back: bool

    @property
    def is_session(self) -> bool:
        """True if the holder has accepted a session."""

    def add_settle_requests(self, requests: Sequence[Any]) -> None:
        """Add requests to settle messages (`SettleRequest`). Runs in the SDK's thread."""

    def lose(self, delivery: Delivery) -> None:
        """Drop a lock that another holder has now. Runs in the SDK's thread."""


@dataclass(slots=True, eq=False)
class Delivery:
    """The broker payload: one message that was delivered to the stream.

    Attributes:
        received: The message with its current lock. If the message comes again, the SDK's thread replaces this value;
            see `come_again`.
        link: The AMQP link on which the message was locked, and on which it must be settled. Changes with `received`.
        deliveries: Service Bus's count of deliveries, including this one.
    """

    message: BrokerMessage
    received: ServiceBusReceivedMessage
    link: Holder
    key: str
    lane: Lane
    sequence_number: int
    deliveries: int

    def come_again(self, as_: Delivery) -> None:
        """Replace the lost lock by the lock of a later delivery."""
        self.received, self.link, self.deliveries = as_.received, as_.link, as_.deliveries


def delivery_of(received: ServiceBusReceivedMessage, link: Holder, entity: EntityPath) -> Delivery:
    """Make a delivery from a message of the SDK.

    The key contains the sequence number and the time at which Service Bus stored the message.
    Number and time stay the same at a redelivery. If a queue is deleted and created again, the
    numbers repeat, and only the later times make the keys differ.
    """
    number = received.sequence_number
    assert number is not None
    enqueued = received.enqueued_time_utc or datetime.fromtimestamp(0, UTC)
    session_id = received.session_id
    deliveries = (received.delivery_count or 0) + 1
    message = BrokerMessage(
        _body_of(received),
        None if session_id is None else session_id.encode(),
        _attributes(received),
        {
            "entity": str(entity),
            "message_id": _optional_text(received.message_id),
            "session_id": session_id,
            "sequence_number": number,
            "subject": received.subject,
            "correlation_id": _optional_text(received.correlation_id),
            "content_type": received.content_type,
        },
        enqueued,
        deliveries,
    )
    return Delivery(
        message,
        received,
        link,
        f"{entity}/{number}@{int(enqueued.timestamp() * 1000)}",
        ("message", number)
        if session_id is None or not link.is_session
        else ("session", session_id),
        number,
        deliveries,
    )


def _body_of(received: ServiceBusReceivedMessage) -> bytes | None:
    """Return the body: data unchanged, text as UTF-8, any other value as JSON; None if it is empty."""
    body: Any = received.body
    if body is None:
        return None
    if isinstance(body, (bytes, bytearray)):
        return bytes(body) or None
    if isinstance(body, str):
        return body.encode() or None
    if received.body_type.name == "DATA":
        # The data of a message that has only properties is empty; then the body is None.
        return b"".join(bytes(part) for part in body) or None
    return json.dumps(
        _plain(list(body) if received.body_type.name == "SEQUENCE" else body)
    ).encode()


def _plain(value: Any) -> Any:
    """Return an AMQP value in a form that JSON supports."""
    if isinstance(value, dict):
        return {_text(name): _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return _text(value)


def _attributes(received: ServiceBusReceivedMessage) -> dict[str, str | bytes]:
    # Senders in other languages may send null values, although the SDK's types exclude them.
    properties: dict[Any, Any] = received.application_properties or {}
    return {
        _text(name): _attribute(value) for name, value in properties.items() if value is not None
    }


def _attribute(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return _text(value)


def _text(value: Any) -> str:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return text_of(bytes(value)) or ""
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _optional_text(value: Any) -> str | None:
    return None if value is None else _text(value)
