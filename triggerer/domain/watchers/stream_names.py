"""The names of streams that people read in tables, logs and errors."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from triggerer.errors import PluginError

_LONGEST: Final = 200
"""The most characters of a name. A longer name would push the rest of its line out of sight."""


def stream_name(described: object, key: Hashable) -> str:
    """Return the trigger's description of its stream in one line, or else the stream's key in words.

    Args:
        described: The result of `describe_stream()`.
    Raises:
        PluginError: `describe_stream()` returned neither text nor None.
    """
    if described is None:
        return _in_one_line(readable_key(key))
    if not isinstance(described, str):
        raise PluginError(f"describe_stream() must return a text or None, not {described!r}")
    return _in_one_line(described) or _in_one_line(readable_key(key))


def readable_key(key: Hashable) -> str:
    """Return the parts of a key in one line: `('sqs', 'eu', ('a', None))` becomes `sqs eu (a)`."""
    if isinstance(key, tuple):
        return " ".join(part for one in key if one is not None and (part := _part(one)))
    return str(key)


def _part(part: Hashable) -> str:
    if isinstance(part, tuple):
        inner = readable_key(part)
        return f"({inner})" if inner else ""
    if isinstance(part, frozenset):
        return ", ".join(sorted(map(str, part)))
    return f"{part:g}" if isinstance(part, float) else str(part)


def _in_one_line(text: str) -> str:
    words = " ".join(text.replace("\0", " ").split())
    return words if len(words) <= _LONGEST else f"{words[: _LONGEST - 1]}…"
