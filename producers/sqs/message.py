"""A received message, as filters see it and as the producer tracks it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import Any

import anyio

from producers.sqs.queue import Queue
from triggerer.abc import BrokerMessage

SYSTEM_ATTRIBUTES = [
    "ApproximateReceiveCount",
    "SentTimestamp",
    "MessageGroupId",
    "MessageDeduplicationId",
    "SequenceNumber",
]
"""The attributes to request with each message."""


class State(Enum):
    """The stages of a delivery."""

    WAITING = "waiting"
    """The message was received, and not yielded yet."""
    OUT = "out"
    """The message was yielded to the runtime, and not advanced yet."""
    GONE = "gone"
    """The message was deleted or given back. Later outcomes are ignored."""


class Delivery:
    """The broker payload: one message that SQS keeps invisible for us.

    Deliveries compare by identity: a message that was given back and comes again is a different delivery.
    """

    __slots__ = (
        "attributes",
        "delete_handle",
        "deliveries",
        "expires_at",
        "handle",
        "id",
        "is_lost",
        "lane",
        "message",
        "received_at",
        "renew_at",
        "renewing",
        "size",
        "state",
    )

    def __init__(self, raw: Mapping[str, Any], queue: Queue, now: float) -> None:
        system = raw.get("Attributes", {})
        self.id: str = raw["MessageId"]
        self.attributes: Mapping[str, Any] = raw.get("MessageAttributes", {})
        """The attributes as received, with the types that a dead letter must have too."""
        self.deliveries = int(system.get("ApproximateReceiveCount", 1))
        self.handle: str = raw["ReceiptHandle"]
        self.delete_handle = ""
        """The receipt handle in the last request to delete the message."""
        self.message = _message(raw, system, queue)
        group = system.get("MessageGroupId") if queue.is_fifo else None
        # A message without a group has its own lane.
        self.lane: str = self.id if group is None else group
        self.size = _size(raw["Body"], self.attributes)
        self.state = State.WAITING
        self.received_at = now
        self.expires_at = 0.0
        self.renew_at = 0.0
        self.renewing: anyio.Event | None = None
        """Set once the open request that renews the message is answered. None: no such request is open."""
        self.is_lost = False
        """True if the receipt handle is known to be invalid. Other receivers may see the message then."""

    def record_redelivery(self, raw: Mapping[str, Any]) -> None:
        """Record that the message came again while it is in flight: only the newest handle is valid."""
        self.handle = raw["ReceiptHandle"]
        self.deliveries = int(raw.get("Attributes", {}).get("ApproximateReceiveCount", 1))
        self.is_lost = False

    def repeated(self) -> Delivery:
        """Return a copy of the delivery, to be yielded again."""
        other = copy.copy(self)
        other.state = State.WAITING
        # A renewal that is under way belongs to the old delivery, so the copy has none.
        other.renewing = None
        return other

    def __repr__(self) -> str:
        return f"<message {self.id} of queue {self.message.position.get('queue')}>"


def _message(raw: Mapping[str, Any], system: Mapping[str, str], queue: Queue) -> BrokerMessage:
    group = system.get("MessageGroupId")
    sent = system.get("SentTimestamp")
    return BrokerMessage(
        raw["Body"].encode(errors="surrogatepass"),
        None if group is None else group.encode(),
        {name: _content(value) for name, value in raw.get("MessageAttributes", {}).items()},
        {
            "queue": queue.name,
            "message_id": raw["MessageId"],
            "group_id": group,
            "sequence_number": system.get("SequenceNumber"),
            "deduplication_id": system.get("MessageDeduplicationId"),
        },
        None if sent is None else datetime.fromtimestamp(int(sent) / 1000, UTC),
        int(system.get("ApproximateReceiveCount", 1)),
    )


def _content(value: Mapping[str, Any]) -> str | bytes:
    content: str | bytes = value.get("StringValue", value.get("BinaryValue", ""))
    return content


def _size(body: str, attributes: Mapping[str, Any]) -> int:
    size = len(body)
    for name, value in attributes.items():
        size += len(name) + len(_content(value))
    return size
