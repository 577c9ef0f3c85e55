"""Finds the name and URI that an asset had when an event was recorded, and the events recorded under a name or URI."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import ColumnElement, Select, and_, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from triggerer.store.schema.models import Asset, AssetEvent, FormerIdentity

_Query = TypeVar("_Query", bound="Select[*tuple[Any, ...]]")
NAME = func.coalesce(FormerIdentity.name, Asset.name)
"""A column for queries with `with_identity`: the asset's name when the event was recorded.

`URI` is the column of the asset's URI at that time.
"""
URI = func.coalesce(FormerIdentity.uri, Asset.uri)


class Span(NamedTuple):
    """The range of an asset's events that were recorded while the asset had one name and URI (one identity)."""

    asset_id: int
    after: int
    """The id of the last event before the span; 0 if there is none."""
    last: int | None
    """The id of the last event of the span. None: the asset still has this identity, so the span has no end."""

    @property
    def is_whole(self) -> bool:
        """True if the asset has always had this identity, so that all its events belong to the span."""
        return self.after == 0 and self.last is None

    def condition(self) -> ColumnElement[bool]:
        """Return the condition that an `AssetEvent` belongs to the span."""
        parts: list[ColumnElement[bool]] = [AssetEvent.asset_id == self.asset_id]
        if self.after:
            parts.append(AssetEvent.id > self.after)
        if self.last is not None:
            parts.append(AssetEvent.id <= self.last)
        return and_(*parts)


def with_identity(query: _Query) -> _Query:
    """Join a query of `AssetEvent` with `Asset` and `FormerIdentity`, so that it may use `NAME` and `URI`."""
    other = aliased(FormerIdentity)
    its_last = (
        select(func.min(other.last_event_id))
        .where(other.asset_id == AssetEvent.asset_id, other.last_event_id >= AssetEvent.id)
        .correlate(AssetEvent)
        .scalar_subquery()
    )
    return query.join(Asset, Asset.id == AssetEvent.asset_id).outerjoin(
        FormerIdentity,
        and_(
            FormerIdentity.asset_id == AssetEvent.asset_id,
            FormerIdentity.last_event_id == its_last,
        ),
    )


async def spans_of(session: AsyncSession, *, uri: str, name: str | None = None) -> list[Span]:
    """Return the spans of events that were recorded while an asset had this URI or this name.

    The result is empty if no asset has or ever had the URI or the name.

    Args:
        name: The name. None: search by the URI only.
    """
    had_it = select(FormerIdentity.asset_id).where(_has(FormerIdentity, uri, name))
    assets = await session.execute(
        select(Asset.id, Asset.name, Asset.uri).where(
            or_(_has(Asset, uri, name), Asset.id.in_(had_it))
        )
    )
    present = {asset_id: (its_name, its_uri) for asset_id, its_name, its_uri in sorted(assets)}
    former = await session.execute(
        select(
            FormerIdentity.asset_id,
            FormerIdentity.name,
            FormerIdentity.uri,
            FormerIdentity.last_event_id,
        )
        .where(FormerIdentity.asset_id.in_(present))
        .order_by(FormerIdentity.asset_id, FormerIdentity.last_event_id)
    )
    found: list[Span] = []
    after = dict.fromkeys(present, 0)
    now = ((asset_id, *identity, None) for asset_id, identity in present.items())
    for asset_id, its_name, its_uri, last in (*former, *now):
        if its_uri == uri or (name is not None and its_name == name):
            found.append(Span(asset_id, after[asset_id], last))
        after[asset_id] = last or 0
    return found


def in_spans(spans: Sequence[Span]) -> ColumnElement[bool]:
    """Return the condition that an `AssetEvent` belongs to one of the spans."""
    whole = [span.asset_id for span in spans if span.is_whole]
    parts = [span.condition() for span in spans if not span.is_whole]
    # Put the ids of whole spans into one IN list. SQLite allows thousands of values in an IN list, but only a few
    # hundred parts in an OR.
    return or_(AssetEvent.asset_id.in_(whole), *parts)


def _has(
    table: type[Asset] | type[FormerIdentity], uri: str, name: str | None
) -> ColumnElement[bool]:
    return table.uri == uri if name is None else or_(table.uri == uri, table.name == name)
