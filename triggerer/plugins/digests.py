"""Digests that identify triggers and streams in the store. They are equal in every process."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Hashable, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from typing import Any

from triggerer.errors import PluginError


def canonical_kwargs(kwargs: Mapping[str, Any]) -> str:
    """Return the arguments as canonical JSON: keys sorted, no spaces, tuples as lists.

    Raises:
        PluginError: JSON cannot represent the arguments: for instance, it has no NaN.
    """
    given: object = kwargs
    if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
        raise PluginError(f"a trigger's arguments must be a mapping by name, not {given!r}")
    try:
        return json.dumps(dict(kwargs), sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise PluginError(
            f"a trigger's arguments cannot be written as JSON: {error}",
            hint="serialize() must return values that JSON has: strings, numbers, lists, mappings",
        ) from error


def trigger_digest(
    classpath: str,
    kwargs: Mapping[str, Any],
    guarantee: str | None = None,
    *,
    watcher: str | None = None,
) -> str:
    """Return the SHA-256 of the class path and the canonical JSON of the arguments.

    Args:
        guarantee: The delivery guarantee that the watchers demand, or None. Watchers that demand different guarantees
            do not share a trigger, because the service may refuse one of them and accept the other.
        watcher: The digest of the trigger's only watcher, for a trigger that stores a bookmark. None: watchers with
            equal arguments share the trigger.
    Raises:
        PluginError: JSON cannot represent the arguments.
    """
    asked = "" if guarantee is None else f"!{guarantee}"
    of = "" if watcher is None else f"@{watcher}"
    return _sha256(f"{len(classpath)}:{classpath}{canonical_kwargs(kwargs)}{asked}{of}".encode())


def stream_digest(key: Hashable) -> str:
    """Return the SHA-256 of a stream key. Equal keys have equal digests, in every process.

    A key can contain:

    - None, numbers, strings, bytes, enums, classes, aware datetimes and dataclasses. As in Python, 1, 1.0 and True are
      equal.
    - Tuples and frozensets of all these.
    - Other objects. Their digest uses the class and the `repr`, so equal objects must have equal `repr`s.

    Raises:
        PluginError: The key is not hashable, or contains an object with the default `repr`. The default `repr` has the
            object's address, which differs between processes.
    """
    try:
        hash(key)
    except TypeError as error:
        raise PluginError(f"a stream key must be hashable, and {key!r} is not") from error
    return _sha256(_encoded(key))


def _sha256(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def _tagged(tag: bytes, *parts: bytes) -> bytes:
    """Prefix each part with its length, so that different parts never give the same text."""
    return b"%b%d(%b)" % (tag, len(parts), b"".join(b"%d:%b" % (len(p), p) for p in parts))


def _encoded(value: object) -> bytes:
    # Values that compare equal need the same encoding: a StrEnum equals its string, and a bool equals its number.
    match value:
        case None:
            return b"n"
        case int() | float() | Fraction() | Decimal() | complex():
            return _tagged(b"i", _number(value).encode())
        case str():
            return _tagged(b"s", str.encode(value, "utf-8", "surrogatepass"))
        case bytes():
            return _tagged(b"b", bytes(value))
        case Enum():
            return _tagged(b"e", _class_name(type(value)), str(value.name).encode())
        case tuple():
            return _tagged(b"t", *map(_encoded, value))
        case frozenset():
            return _tagged(b"f", *sorted(map(_encoded, value)))
        case type():
            return _tagged(b"c", _class_name(value))
        case datetime() if value.tzinfo is not None:
            return _tagged(b"d", value.astimezone(UTC).isoformat().encode())
    if is_dataclass(value) and not isinstance(value, type):
        compared = [getattr(value, field.name) for field in fields(value) if field.compare]
        return _tagged(b"r", _class_name(type(value)), *map(_encoded, compared))
    if type(value).__repr__ is object.__repr__:
        raise PluginError(
            f"a stream key holds {value!r}, which looks different in every process",
            hint="make keys of strings, numbers and tuples, or give the class a __repr__",
        )
    return _tagged(b"o", _class_name(type(value)), repr(value).encode())


def _number(value: float | complex | Fraction | Decimal) -> str:
    if isinstance(value, complex):
        if value.imag:
            return f"{_number(value.real)}+{_number(value.imag)}j"
        value = value.real
    if not math.isfinite(value):
        return str(float(value))
    return str(Fraction(value))


def _class_name(kind: type) -> bytes:
    return f"{kind.__module__}.{kind.__qualname__}".encode()
