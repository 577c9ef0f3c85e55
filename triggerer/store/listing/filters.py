"""Filters that several lists share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeVar

from sqlalchemy import ColumnElement, Select, exists, or_, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

from triggerer.store.schema.models import Asset, DagScheduleAsset

_AT_ONCE: Final = 1_000
_Id = TypeVar("_Id", int, str)
_Query = TypeVar("_Query", bound="Select[*tuple[Any, ...]]")


def limited(query: _Query, limit: int) -> _Query:
    """Limit the rows of a query; 0 means all."""
    return query.limit(limit) if limit else query


def is_asset(asset: str) -> ColumnElement[bool]:
    """Return the condition that the `Asset` of a query has this name or URI."""
    return or_(Asset.name == asset, Asset.uri == asset)


def waits_for(dag_id: Any, asset: str) -> ColumnElement[bool]:
    """Return the condition that the DAG's schedule names the asset with this name or URI. Aliases do not count."""
    return (
        exists()
        .where(DagScheduleAsset.dag_id == dag_id, DagScheduleAsset.asset_id == Asset.id)
        .where(is_asset(asset))
    )


def is_waited_for(asset_id: Any, dag: str) -> ColumnElement[bool]:
    """Return the condition that the DAG's schedule names the asset. Aliases do not count."""
    return exists().where(DagScheduleAsset.asset_id == asset_id, DagScheduleAsset.dag_id == dag)


def some_of(
    ids: Sequence[_Id], column: InstrumentedAttribute[_Id]
) -> Iterator[ColumnElement[bool]]:
    """Yield conditions that select these ids, 1,000 at a time, because a statement takes at most 32,767 values."""
    for start in range(0, len(ids), _AT_ONCE):
        yield column.in_(ids[start : start + _AT_ONCE])


async def asset_ids(session: AsyncSession, asset: str) -> Sequence[int]:
    """Return the ids of the assets with this name or URI, usually one; empty if there is no such asset.

    This is a separate query, because a query that joined events with assets would read the events of all assets.
    """
    return (await session.scalars(select(Asset.id).where(is_asset(asset)))).all()
