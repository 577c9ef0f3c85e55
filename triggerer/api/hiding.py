"""Removes payloads from the answers to senders whose role may not see payloads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final, TypeVar, cast

from triggerer.api.access.roles import Access
from triggerer.store.listing.views import AssetEventView, ParkedMessageView

T = TypeVar("T")
_PAYLOADS: Final[Mapping[type[Any], dict[str, Any]]] = {
    AssetEventView: {"extra": None},
    ParkedMessageView: {"message": None},
}


def without_payloads(access: Access, view: T) -> T:
    """Return the view, with null instead of each payload if payloads are hidden from the role."""
    return view if access.sees_payloads else cast("T", _hidden(view))


def _hidden(value: Any) -> Any:
    if isinstance(value, list):
        return [_hidden(one) for one in value]
    if not is_dataclass(value) or isinstance(value, type):
        return value
    inner = {one.name: _hidden(getattr(value, one.name)) for one in fields(value)}
    return replace(value, **(inner | _PAYLOADS.get(type(value), {})))
