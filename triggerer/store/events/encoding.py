"""Encodes what an event carries as the JSON text that is stored; what cannot be stored is refused."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from decimal import Decimal
from pathlib import PurePath
from typing import Any, Final

import orjson

from triggerer.domain.json_text import dump_json
from triggerer.errors import RowRefused

MAX_KEY_BYTES: Final = 1_000
"""Of an idempotency key.

PostgreSQL's index takes rows below 2,704 bytes; a position is far shorter.
"""

_MAX_ORDINAL: Final = 2**31 - 1


def encode_extra(payload: Any, *, max_bytes: int, what: str | None = None) -> str:
    """Return the event's `extra`: the payload if it is a mapping, else `{"payload": payload}`.

    Instants become ISO 8601; UUIDs, decimals and paths become strings; enums their values; dataclasses and
    mappings objects; sets and tuples arrays; keys become strings. NaN, the infinities and bytes are refused:
    JSON has none of them, and the filter has to choose what they mean.

    Args:
        what: The payload's name in an error; None: "a payload", with its type.
    Raises:
        RowRefused: It is no JSON, too large, or has a NUL character, which PostgreSQL cannot store.
    """
    # First what almost all are: a check against an abstract class takes longer than encoding.
    is_mapping = type(payload) is dict or isinstance(payload, Mapping)
    document = payload if is_mapping else {"payload": payload}
    encoded = _encode(document, what or f"a payload of type {type(payload).__name__}")
    if len(encoded) > max_bytes:
        raise RowRefused(
            f"{what or 'a payload'} has {len(encoded):,} bytes as JSON, more than the {max_bytes:,} allowed",
            hint="store it elsewhere and let the event carry where it lies",
        )
    return encoded.decode()


def _encode(document: Any, what: str) -> bytes:
    try:
        return dump_json(document, what, default=_plain)
    except RowRefused as error:
        if not isinstance(error.__cause__, TypeError):
            raise
        # It makes encoding slower, so it is used only where it is needed.
        return dump_json(document, what, default=_plain, option=orjson.OPT_NON_STR_KEYS)


def check_identity(key: str, ordinal: int) -> None:
    """Check that both can be stored as an event's identity.

    Raises:
        RowRefused: The key is too long, has a NUL character or is no Unicode; or the ordinal.
    """
    if not 0 <= ordinal <= _MAX_ORDINAL:
        raise RowRefused(f"the ordinal {ordinal} is out of range")
    if "\0" in key:
        raise RowRefused(f"the idempotency key {key!r} has a NUL character")
    if len(key) <= MAX_KEY_BYTES and key.isascii():
        return
    try:
        size = len(key.encode())
    except UnicodeEncodeError as error:
        raise RowRefused(f"the idempotency key {key!r} is not Unicode: {error}") from error
    if size > MAX_KEY_BYTES:
        raise RowRefused(
            f"an idempotency key has {size:,} bytes, more than {MAX_KEY_BYTES:,}",
            hint="hash what identifies the message",
        )


def _plain(value: object) -> object:
    if isinstance(value, Decimal | PurePath):
        return str(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, AbstractSet):
        # The same set has to have the same text in every process.
        return sorted(value, key=repr)
    raise TypeError(f"{type(value).__name__} has no JSON form")
