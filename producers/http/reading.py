"""From an answer to its items: what is in it, and what tells one from the next. Synchronous, without I/O."""

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
"""In one answer: the keys of all of them have to be remembered."""
_LONG: Final = 2.0**63
"""A whole number of JSON that is as large, or larger, may have lost digits."""


@dataclass(frozen=True, slots=True)
class Found:
    """An item of an answer, or the whole of it.

    Attributes:
        digest: Of what tells it from others: its key, or all of it.
        key: Its key as it stands there; the digest where it has none.
    """

    digest: str
    key: Any
    value: bytes


@dataclass(frozen=True, slots=True)
class Page:
    """What an answer holds; each item once. `cursor` is None where it has none."""

    found: tuple[Found, ...]
    cursor: str | int | float | None = None


class Reader:
    """Reads the answers of one URL.

    Args:
        items: The path to the list; None: the answer as a whole is the only item.
        item_key: The path, in an item, to what tells it from the next. None, or where it is missing: all of it.
        cursor: The path to the cursor.
    """

    def __init__(self, items: str | None, item_key: str | None, cursor: str | None) -> None:
        self._items = items
        self._get_items = _getter(items)
        self._get_key = _getter(item_key)
        self._get_cursor = _getter(cursor)

    def read(self, body: bytes, what: str) -> Page:
        """Read an answer.

        Raises:
            BrokerRefused: It is not JSON and has to be, has no list where one is expected, or has too many items.
        """
        document = None
        if self._get_items is not None or self._get_cursor is not None:
            try:
                document = BrokerMessage(body).json()
            except ValueError as error:
                raise BrokerRefused(f"{what}: its answer is not JSON: {error}") from error
        cursor = None if self._get_cursor is None else self._get_cursor(None, document)
        if isinstance(cursor, bool) or not isinstance(cursor, (str, int, float)):
            cursor = None
        if self._get_items is None:
            digest = digest_of(body)
            return Page((Found(digest, digest, body),), cursor)
        items = self._get_items(None, document)
        if items is None:
            # As some servers write a list of nothing.
            items = []
        return Page(self._read_items(items, body, what), cursor)

    def _read_items(self, items: Any, body: bytes, what: str) -> tuple[Found, ...]:
        if not isinstance(items, list):
            raise BrokerRefused(
                f"{what}: its answer has no list at {self._items!r}",
                hint="items is the path to the list: data.items, or @value where the answer is the list",
            )
        if len(items) > MOST_ITEMS:
            raise BrokerRefused(
                f"{what}: its answer has {len(items)} items, {MOST_ITEMS} can be told apart",
                hint="ask for fewer at a time, with a limit in the URL or a cursor",
            )
        found: dict[str, Found] = {}
        for item, key in zip(items, self._keys_of(items, body), strict=True):
            value = orjson.dumps(item)
            is_keyed = key is not MISSING and key is not None
            # Of a kind of their own: a key that looks like an item must not be taken for it.
            basis = [key] if is_keyed else item
            digest = digest_of(orjson.dumps([is_keyed, basis], option=orjson.OPT_SORT_KEYS))
            found.setdefault(digest, Found(digest, key if is_keyed else digest, value))
        return tuple(found.values())

    def _keys_of(self, items: list[Any], body: bytes) -> list[Any]:
        if self._get_key is None:
            return [MISSING] * len(items)
        keys = [self._get_key(None, item) for item in items]
        if any(isinstance(key, float) and abs(key) >= _LONG for key in keys):
            # Two of them might be taken for one: read again, with all digits. As text, which everybody can store.
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
    """What tells contents apart: 96 bits."""
    return hashlib.sha256(content).hexdigest()[:24]
