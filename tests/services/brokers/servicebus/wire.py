"""Small translations between AMQP and the stored messages."""

from __future__ import annotations

from typing import Any

from proton import Condition, Data, Described, Message, symbol, timestamp

from tests.services.brokers.servicebus.entities import Refused, Stored

_TICKS_AT_EPOCH = 621_355_968_000_000_000
_DATA_SECTION = 0x75


def path_of(address: str) -> str:
    """The entity's path in an address, which may be a whole URI."""
    if "://" in address:
        address = address.split("://", 1)[1].partition("/")[2]
    return address.strip("/")


def ticks(seconds: float) -> int:
    """Convert seconds since the epoch to .NET's ticks: tenths of microseconds since the year 1."""
    return int(seconds * 10_000_000) + _TICKS_AT_EPOCH


def condition_of(refused: Refused) -> Condition:
    return Condition(refused.condition, refused.description)


def decode(data: bytes) -> Message:
    message = Message()
    message.decode(data)
    return message


def split_batch(encoded: bytes) -> list[bytes]:
    """Return the encoded messages of a batch. Each message is the content of one data section."""
    found = []
    while encoded:
        section = Data()
        size = section.decode(encoded)
        section.rewind()
        section.next()
        value = section.get_object()
        if isinstance(value, Described) and int(value.descriptor) == _DATA_SECTION:
            found.append(bytes(value.value))
        encoded = encoded[size:]
    return found


def outgoing(stored: Stored, *, now_locked_until: float) -> bytes:
    """Return a message in its delivered form: as it was sent, with the annotations that Service Bus adds."""
    message = decode(stored.body)
    message.delivery_count = stored.delivery_count
    annotations: dict[Any, Any] = dict(message.annotations or {})
    annotations[symbol("x-opt-sequence-number")] = stored.sequence_number
    annotations[symbol("x-opt-enqueued-time")] = timestamp(int(stored.enqueued_at * 1000))
    annotations[symbol("x-opt-locked-until")] = timestamp(int(now_locked_until * 1000))
    message.annotations = annotations
    if stored.dead_letter:
        message.properties = {**(message.properties or {}), **stored.dead_letter}
    return bytes(message.encode())
