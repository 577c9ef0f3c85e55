"""JSON text in the store: a stored value is read back with the same types and numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from enum import Enum
from math import isfinite
from typing import Any, Final

import orjson

from triggerer.domain.text.storable import strings_with_nul
from triggerer.errors import RowRefused

_BACKSLASH: Final = ord("\\")
_NUL: Final = b"\\u0000"
_NULL: Final = b"null"
_TOO_LONG: Final = "Integer exceeds 64-bit range"
_HALF_A_PAIR: Final = "str is not valid UTF-8: surrogates not allowed"
_SHOWN: Final = 40
"""The most characters of a string that an error shows."""
_ATOMS: Final = frozenset({str, int, bool, type(None), bytes})


def dump_json(
    value: Any, what: str, *, default: Callable[[Any], Any] | None = None, option: int | None = None
) -> bytes:
    """Return a value as JSON text that every database can store.

    Args:
        what: The value's name in an error, such as "the extra of orders".
        default: The function that orjson calls for a type that it does not know.
        option: Options of orjson.
    Raises:
        RowRefused: JSON cannot represent the value, or a database cannot store the text. The message names the reason:
            NaN, an infinity, an integer of more than 64 bits, a NUL character, half a surrogate pair, or a type.
    """
    try:
        text = orjson.dumps(value, default=default, option=option)
    except (TypeError, ValueError, RecursionError) as error:
        if str(error) == _TOO_LONG:
            raise RowRefused(
                f"{what} has an integer of more than 64 bits", hint="write it as a string"
            ) from error
        if str(error) == _HALF_A_PAIR:
            raise RowRefused(
                f"{what} is not JSON: a string has half of a surrogate pair", hint="remove it"
            ) from error
        # Without `default`, orjson tries to call None. The traceback would only show this failed call, so leave it out.
        raise RowRefused(
            f"{what} is not JSON: {error}",
            hint="use strings, numbers, lists and mappings",
        ) from (None if default is None else error)
    nulls = text.count(_NULL)
    # orjson writes `null` for None, NaN and the infinities. If each `null` in the text is a None
    # value of the dict, the dict has no NaN and no infinity. Only otherwise search for them.
    if nulls and nulls != _nones_of(value):
        _refuse_non_finite(value, what)
    # JSON writes a NUL character as `\u0000`. The search for the backslash alone is five times as fast, so it comes
    # first. A string with a real backslash before `u0000` matches too, so `_refuse_nul` checks each string.
    if _BACKSLASH in text and _NUL in text:
        _refuse_nul(text, what)
    return text


def load_json(text: bytes | str) -> Any:
    """Return the value of a stored JSON text."""
    return orjson.loads(text)


def _refuse_non_finite(value: Any, what: str) -> None:
    """Refuse NaN and the infinities, for which orjson silently writes null."""
    if (found := _find_non_finite(value, "")) is not None:
        place, number = found
        raise RowRefused(
            f"{what} has {_spelled(number)}{f' at {place}' if place else ''}, which JSON does not have",
            hint="leave the value out, or use None",
        )


def _refuse_nul(text: bytes, what: str) -> None:
    """Refuse a string with a NUL character, which PostgreSQL cannot store."""
    for string in strings_with_nul(orjson.loads(text)):
        raise RowRefused(
            f"{what} has a NUL character in the string {string[:_SHOWN]!r}",
            hint="remove the NUL character",
        )


def _nones_of(value: Any) -> int:
    """Return how many values of a dict are None. orjson writes one `null` for each."""
    if type(value) is not dict:
        return 0
    count = 0
    for item in value.values():
        if item is None:
            count += 1
    return count


def _spelled(number: float) -> str:
    return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(float(number))]


def _find_non_finite(value: Any, place: str) -> tuple[str, float] | None:
    """Return the path and the value of the first number that is not finite; None: all numbers are finite."""
    kind = type(value)
    if kind in _ATOMS:
        return None
    if isinstance(value, float):
        return None if isfinite(value) else (place, value)
    if kind is dict or isinstance(value, Mapping):
        for key, item in value.items():
            if type(item) in _ATOMS and type(key) is str:
                continue
            if isinstance(key, float) and not isfinite(key):
                return place, key
            if found := _find_non_finite(item, f"{place}.{key}" if place else str(key)):
                return found
    elif isinstance(value, list | tuple | AbstractSet):
        for number, item in enumerate(value):
            if found := _find_non_finite(item, f"{place}[{number}]"):
                return found
    elif isinstance(value, Enum):
        return _find_non_finite(value.value, place)
    elif is_dataclass(value) and not isinstance(value, type):
        items = {field.name: getattr(value, field.name, None) for field in fields(value)}
        return _find_non_finite(items, place)
    return None
