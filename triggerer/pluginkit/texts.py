"""Converts bytes and texts of messages to text that JSON and every database can store."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final

_NUL: Final = "\0"


def text_of(raw: str | bytes | None) -> str | None:
    """Return a message's key or attribute as a string that every database can store.

    Bytes are decoded from UTF-8. Bytes that are not UTF-8, such as an eight-byte number, become `base64:…`. So does
    text with a NUL character or half a surrogate pair, because some databases refuse these.
    """
    if raw is None:
        return None
    if isinstance(raw, str):
        return raw if is_storable(raw) else _base64(raw.encode(errors="surrogatepass"))
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return _base64(raw)
    return _base64(raw) if _NUL in text else text


def texts_of(attributes: Mapping[str, Any]) -> dict[str, str | None]:
    """Return attributes in a form that JSON supports: names and values as `text_of` returns them."""
    # Most values are ASCII strings. These checks are cheaper than a call of `text_of`.
    return {
        _name_of(name): value
        if type(value) is str and value.isascii() and _NUL not in value
        else text_of(value)
        for name, value in attributes.items()
    }


def strict_text_of(raw: bytes) -> str:
    """Return the UTF-8 text of a message's value.

    Raises:
        ValueError: The value is not UTF-8, or has a NUL character, which no event can contain.
    """
    text = raw.decode()
    if _NUL in text:
        raise ValueError(
            f"it has a NUL character at {text.index(_NUL)}, so it is no text: decode it as bytes"
        )
    return text


def is_storable(text: str) -> bool:
    """Whether every database can store the text: it has no NUL character and no half of a surrogate pair."""
    if _NUL in text:
        return False
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _name_of(name: str) -> str:
    return name if name.isascii() and _NUL not in name else text_of(name) or ""


def _base64(raw: bytes) -> str:
    return "base64:" + base64.b64encode(raw).decode()
