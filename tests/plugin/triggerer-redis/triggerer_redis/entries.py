"""Entries of a stream as messages, and their ids as positions. Synchronous, without I/O."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from triggerer.abc import BrokerMessage

_SEQUENCE_BITS = 20
_SEQUENCE_MASK = (1 << _SEQUENCE_BITS) - 1
_TIME_MAX = (1 << 42) - 1  # so that a position is below 2**63
_YEAR_9999_MS = 253_402_300_799_999


def parse_id(entry_id: str) -> tuple[int, int]:
    """The two numbers of an id: milliseconds and sequence, unless the publisher made its own."""
    milliseconds, _, sequence = entry_id.partition("-")
    return int(milliseconds), int(sequence or 0)


def number_of(entry_id: str) -> int:
    """An id as a number that grows with it. Where it would not fit, several ids have the same one, the largest."""
    milliseconds, sequence = parse_id(entry_id)
    return min(milliseconds, _TIME_MAX) << _SEQUENCE_BITS | min(sequence, _SEQUENCE_MASK)


def id_of(number: int) -> str:
    """The first id that has this number, or a larger one."""
    return f"{number >> _SEQUENCE_BITS}-{number & _SEQUENCE_MASK}"


def before(entry_id: str) -> str:
    """The id just before this one: XREAD begins after the id that it is given."""
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
    """The entry as filters see it: one field is the value, and all others are attributes."""
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
    """The fields that the entry had."""
    value = {} if message.value is None else {value_field: message.value}
    return value | dict(message.attributes)
