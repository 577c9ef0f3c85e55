"""Reads JSON that a later release may have written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any


def known_fields(kind: type[Any], document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries that are fields of the dataclass.

    All other entries are ignored. During an upgrade, a service of the next release may write such entries.
    """
    names = {one.name for one in fields(kind)}
    return {name: value for name, value in document.items() if name in names}
