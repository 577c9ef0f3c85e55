"""Bytes of messages as text that JSON can hold."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any


def text_of(raw: str | bytes | None) -> str | None:
    """Return bytes as UTF-8 text, or as `base64:…` if they are none; text and None stay."""
    if raw is None or isinstance(raw, str):
        return raw
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(raw).decode()


def texts_of(attributes: Mapping[str, Any]) -> dict[str, str | None]:
    """Attributes as JSON can hold them."""
    return {
        name: value if type(value) is str else text_of(value) for name, value in attributes.items()
    }
