"""Turns messages into bytes and back, so that the store can keep them (contract, rule 18)."""

from __future__ import annotations

import base64
import json
from datetime import datetime
from typing import Any, Final

import orjson

from triggerer.abc import BrokerMessage

_VERSION: Final = 1


def dump_message(message: BrokerMessage) -> bytes:
    """Return a message as bytes: a line of JSON, then the value and the key.

    The JSON contains the sizes of value and key, and all other fields of the message.
    """
    contents = [message.value, message.key]
    published = message.published_at
    head = {
        "v": _VERSION,
        "sizes": [None if content is None else len(content) for content in contents],
        "attributes": {name: _pack(value) for name, value in message.attributes.items()},
        "position": dict(message.position),
        "published_at": None if published is None else published.isoformat(),
        "deliveries": message.deliveries,
    }
    try:
        line = orjson.dumps(head)
    except TypeError:
        # `orjson` refuses numbers of more than 64 bits and halves of surrogate pairs. JSON and AMQP allow both.
        line = json.dumps(head).encode()
    return b"".join((line, b"\n", *(content or b"" for content in contents)))


def load_message(data: bytes) -> BrokerMessage:
    """Return the message that was dumped.

    Raises:
        ValueError: The bytes are incomplete, were dumped by a later version, or are no dump.
    """
    line, end, rest = data.partition(b"\n")
    try:
        # Not `orjson`, which refuses half a surrogate pair.
        head = json.loads(line)
        if head["v"] != _VERSION:
            raise ValueError(f"version {head['v']} is not known")
        sizes = head["sizes"]
        if not end or sum(size or 0 for size in sizes) != len(rest):
            raise ValueError("it is incomplete, or has extra bytes")
        contents: list[bytes | None] = []
        for size in sizes:
            contents.append(None if size is None else rest[:size])
            rest = rest[size or 0 :]
        value, key = contents
        published = head["published_at"]
        return BrokerMessage(
            value,
            key,
            {name: _unpack(packed) for name, packed in head["attributes"].items()},
            head["position"],
            None if published is None else datetime.fromisoformat(published),
            head["deliveries"],
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"no dump of a message: {error}") from error


def get_size(message: BrokerMessage) -> int:
    """Return the size of value, key and attributes, for limits such as `max_outstanding_bytes`."""
    size = len(message.value or b"") + len(message.key or b"")
    for name, value in message.attributes.items():
        size += len(name) + len(value or b"")
    return size


def _pack(value: str | bytes | None) -> Any:
    return [base64.b64encode(value).decode()] if isinstance(value, bytes) else value


def _unpack(packed: Any) -> Any:
    return base64.b64decode(packed[0], validate=True) if isinstance(packed, list) else packed
