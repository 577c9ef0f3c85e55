"""Filters that several lists share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Select, exists, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.store.models import Asset, DagScheduleAsset

_Query = TypeVar("_Query", bound="Select[*tuple[Any, ...]]")


def limited(query: _Query, limit: int) -> _Query:
    """Limit the rows of a query; 0: all."""
    return query.limit(limit) if limit else query


def is_asset(asset: str) -> ColumnElement[bool]:
    """The `Asset` has this name, or this URI."""
    return or_(Asset.name == asset, Asset.uri == asset)


def is_waited_for(asset_id: Any, dag: str) -> ColumnElement[bool]:
    """The DAG waits for the asset."""
    return exists().where(DagScheduleAsset.asset_id == asset_id, DagScheduleAsset.dag_id == dag)


async def asset_ids(session: AsyncSession, asset: str) -> Sequence[int]:
    """Return the ids of the assets with this name or URI: usually one; none if there is no such asset.

    A query of its own: in a join, the planners walk the events of all assets.
    """
    return (await session.scalars(select(Asset.id).where(is_asset(asset)))).all()
