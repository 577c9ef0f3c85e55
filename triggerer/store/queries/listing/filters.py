"""What the commands' lists are cut down to, wherever they are about an asset or have a limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Select, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.store.models import Asset

_Query = TypeVar("_Query", bound="Select[*tuple[Any, ...]]")


def limited(query: _Query, limit: int) -> _Query:
    """At most so many rows; 0: all."""
    return query.limit(limit) if limit else query


def is_asset(asset: str) -> ColumnElement[bool]:
    """The `Asset` has this name or this URI."""
    return or_(Asset.name == asset, Asset.uri == asset)


async def asset_ids(session: AsyncSession, asset: str) -> Sequence[int]:
    """The assets of this name or URI: one as a rule, none if there is no such asset.

    Asked for by themselves: joined, the planners go through the events of all assets.
    """
    return (await session.scalars(select(Asset.id).where(is_asset(asset)))).all()
