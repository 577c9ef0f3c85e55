"""Encodes an event's payload as the JSON text to store, and refuses payloads that cannot be stored."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from decimal import Decimal
from pathlib import PurePath
from typing import Any, Final

import orjson

from triggerer.domain.text.json_text import dump_json
from triggerer.errors import RowRefused

MAX_KEY_BYTES: Final = 1_000
"""The longest idempotency key, in bytes. PostgreSQL refuses index entries of more than 2,704 bytes."""

_MAX_ORDINAL: Final = 2**31 - 1


def encode_extra(payload: Any, *, max_bytes: int, what: str | None = None) -> str:
    """Return the event's `extra`: the payload if it is a mapping, else `{"payload": payload}`.

    Values that JSON does not know are converted:

    - instants become strings in ISO 8601,
    - UUIDs, decimals, paths and the keys of mappings become strings,
    - enums become their values,
    - dataclasses and mappings become objects,
    - sets and tuples become arrays.

    NaN, infinities and bytes are refused. The plugin's filter has to choose another form for them.

    Args:
        max_bytes: The most bytes that the JSON text may have.
        what: The payload's name in an error. None: "a payload", with its type.
    Raises:
        RowRefused: The payload has no JSON form, is too large, or contains a NUL character, which PostgreSQL refuses.
            Or two keys of one mapping become the same string, such as `1` and `"1"`.
    """
    # Test for a dict first, because `isinstance` with the abstract class takes longer than encoding the payload.
    is_mapping = type(payload) is dict or isinstance(payload, Mapping)
    document = payload if is_mapping else {"payload": payload}
    try:
        encoded = dump_json(document, "a payload", default=_plain)
    except RowRefused:
        # Try again, and allow keys that are not strings. The first try does not allow them, because this option makes
        # encoding slower.
        name = what or f"a payload of type {type(payload).__name__}"
        encoded = dump_json(document, name, default=_plain, option=orjson.OPT_NON_STR_KEYS)
        _refuse_equal_keys(encoded, name)
    if len(encoded) > max_bytes:
        raise RowRefused(
            f"{what or 'a payload'} has {len(encoded):,} bytes as JSON, more than the {max_bytes:,} allowed",
            hint="store it elsewhere and let the event carry its address",
        )
    return encoded.decode()


def check_identity(key: str, ordinal: int) -> None:
    """Check that the key and the ordinal can be stored as an event's identity.

    Raises:
        RowRefused: The ordinal is out of range, or the key is too long, is not Unicode or contains a NUL character.
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
            hint="use a hash of the values that identify the message",
        )


def _refuse_equal_keys(encoded: bytes, what: str) -> None:
    """Refuse an object with two equal keys. Readers of JSON would silently lose the value of one of them."""
    # orjson is ten times as fast as `json`, but does not name the key.
    if len(orjson.dumps(orjson.loads(encoded))) == len(encoded):
        return

    def check(pairs: list[tuple[str, Any]]) -> None:
        if len(dict(pairs)) < len(pairs):
            ((key, _),) = Counter(key for key, _ in pairs).most_common(1)
            raise RowRefused(
                f"{what} has two keys that are {key!r} in JSON",
                hint="use different strings as keys",
            )

    json.loads(encoded, object_pairs_hook=check)


def _plain(value: object) -> object:
    if isinstance(value, Decimal | PurePath):
        return str(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, AbstractSet):
        # Equal sets must give equal JSON in every process.
        return sorted(value, key=repr)
    raise TypeError(f"{type(value).__name__} has no JSON form")
