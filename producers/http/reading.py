"""Reads the items of an answer, with the keys that distinguish them. Synchronous, without I/O."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Final

import orjson

from triggerer.abc import BrokerMessage
from triggerer.errors import BrokerRefused
from triggerer.pluginkit.matching import MISSING, Getter, compile_path

MOST_ITEMS: Final = 10_000
"""The most items in one answer, because the keys of all items have to be remembered."""
_LONG: Final = 2.0**63
"""An integer that `orjson` cannot represent becomes a float of at least this size, which may lose digits."""


@dataclass(frozen=True, slots=True)
class Found:
    """An item of an answer, or the whole answer.

    Attributes:
        digest: The digest of the item's key, or of the whole item if it has none.
        key: The key as the answer contains it; the digest if the item has no key.
    """

    digest: str
    key: Any
    value: bytes


@dataclass(frozen=True, slots=True)
class Page:
    """The items of an answer, each once, and the cursor, which may be None."""

    found: tuple[Found, ...]
    cursor: str | int | float | None = None


class Reader:
    """Reads the answers of one URL.

    Args:
        items: The path to the list. None: the answer as a whole is the only item.
        item_key: The path in an item to its key. Without a path, or without a key at the path, the whole item is the
            key.
        cursor: The path to the value that the next request sends as its cursor.
    """

    def __init__(self, items: str | None, item_key: str | None, cursor: str | None) -> None:
        self._items = items
        self._get_items = _getter(items)
        self._get_key = _getter(item_key)
        self._get_cursor = _getter(cursor)

    def read(self, body: bytes, what: str) -> Page:
        """Read an answer.

        Raises:
            BrokerRefused: The answer has no list at `items`, or too many items. Or `items` or `cursor` is set, and the
                answer is not JSON.
        """
        document = None
        if self._get_items is not None or self._get_cursor is not None:
            try:
                document = BrokerMessage(body).json()
            except ValueError as error:
                raise BrokerRefused(f"{what}: the answer is not JSON: {error}") from error
        cursor = None if self._get_cursor is None else self._get_cursor(None, document)
        if isinstance(cursor, bool) or not isinstance(cursor, (str, int, float)):
            cursor = None
        if self._get_items is None:
            digest = digest_of(body)
            return Page((Found(digest, digest, body),), cursor)
        items = self._get_items(None, document)
        if items is None:
            # Treat null as an empty list, because some servers write null for an empty list.
            items = []
        return Page(self._read_items(items, body, what), cursor)

    def _read_items(self, items: Any, body: bytes, what: str) -> tuple[Found, ...]:
        if not isinstance(items, list):
            raise BrokerRefused(
                f"{what}: the answer has no list at {self._items!r}",
                hint="items is the path to the list: data.items, or @value if the answer is the list",
            )
        if len(items) > MOST_ITEMS:
            raise BrokerRefused(
                f"{what}: the answer has {len(items)} items, more than {MOST_ITEMS}",
                hint="ask for fewer at a time, with a limit in the URL or a cursor",
            )
        found: dict[str, Found] = {}
        for item, key in zip(items, self._keys_of(items, body), strict=True):
            value = orjson.dumps(item)
            is_keyed = key is not MISSING and key is not None
            # The digest includes `is_keyed`, so that a key and a whole item with equal content have different digests.
            basis = [key] if is_keyed else item
            digest = digest_of(orjson.dumps([is_keyed, basis], option=orjson.OPT_SORT_KEYS))
            found.setdefault(digest, Found(digest, key if is_keyed else digest, value))
        return tuple(found.values())

    def _keys_of(self, items: list[Any], body: bytes) -> list[Any]:
        if self._get_key is None:
            return [MISSING] * len(items)
        keys = [self._get_key(None, item) for item in items]
        if any(isinstance(key, float) and abs(key) >= _LONG for key in keys):
            # `orjson` reads integers of more than 64 bits as floats, which lose digits. Two different keys might look
            # equal. So read these keys again with all digits. Return them as strings, because `orjson` cannot write
            # such integers.
            assert self._get_items is not None
            exact = [self._get_key(None, item) for item in self._get_items(None, json.loads(body))]
            keys = [
                str(whole) if isinstance(key, float) and isinstance(whole, int) else key
                for key, whole in zip(keys, exact, strict=True)
            ]
        return keys


def _getter(path: str | None) -> Getter[None] | None:
    return None if path is None else compile_path(path, {})


def digest_of(content: bytes) -> str:
    """Return the first 96 bits of the content's hash, as text."""
    return hashlib.sha256(content).hexdigest()[:24]
