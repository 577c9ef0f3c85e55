"""Converts entries of a stream to messages, and their ids to positions. Nothing here does I/O."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from triggerer.abc import BrokerMessage

_SEQUENCE_BITS = 20
_SEQUENCE_MASK = (1 << _SEQUENCE_BITS) - 1
_TIME_MAX = (1 << 42) - 1  # keeps a position below 2**63
_YEAR_9999_MS = 253_402_300_799_999


def parse_id(entry_id: str) -> tuple[int, int]:
    """Return the two numbers of an id: ms since 1970 and a sequence number, unless the publisher chose the id."""
    milliseconds, _, sequence = entry_id.partition("-")
    return int(milliseconds), int(sequence or 0)


def number_of(entry_id: str) -> int:
    """Return a number below 2**63 for an id. A larger id has a larger number.

    This does not hold for a time of more than 42 bits or a sequence of more than 20 bits. Such a part counts as the
    largest one that fits, so several ids may have one number.
    """
    milliseconds, sequence = parse_id(entry_id)
    return min(milliseconds, _TIME_MAX) << _SEQUENCE_BITS | min(sequence, _SEQUENCE_MASK)


def id_of(number: int) -> str:
    """Return the first id with this number."""
    return f"{number >> _SEQUENCE_BITS}-{number & _SEQUENCE_MASK}"


def before(entry_id: str) -> str:
    """Return the id just before `entry_id`. XREAD begins after the id that it gets, so it returns `entry_id`."""
    milliseconds, sequence = parse_id(entry_id)
    if sequence:
        return f"{milliseconds}-{sequence - 1}"
    return f"{milliseconds - 1}-{(1 << 64) - 1}" if milliseconds else "0-0"


def make_message(
    stream: str,
    incarnation: str,
    entry_id: str,
    fields: Mapping[bytes, bytes],
    *,
    value_field: str,
    deliveries: int | None,
) -> BrokerMessage:
    """Return an entry as filters see it. The field `value_field` is the value, and all other fields are attributes."""
    attributes = {name.decode(errors="backslashreplace"): text for name, text in fields.items()}
    value = attributes.pop(value_field, None)
    milliseconds, _ = parse_id(entry_id)
    return BrokerMessage(
        value=value,
        attributes=attributes,
        position={"stream": stream, "id": entry_id, "incarnation": incarnation},
        published_at=datetime.fromtimestamp(min(milliseconds, _YEAR_9999_MS) / 1000, UTC),
        deliveries=deliveries,
    )


def fields_of(message: BrokerMessage, value_field: str) -> dict[str, str | bytes]:
    """Return the fields of the entry from which the message was made."""
    value = {} if message.value is None else {value_field: message.value}
    return value | dict(message.attributes)
