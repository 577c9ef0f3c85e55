"""Reads the edges of the graph that the page draws: between watchers, assets, aliases and DAGs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import ColumnElement, select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.store.listing.filters import limited
from triggerer.store.schema.models import (
    Asset,
    AssetAlias,
    Dag,
    DagScheduleAlias,
    DagScheduleAsset,
    Watcher,
)

Node = tuple[str, str]
"""The kind and the name of a node: an asset, an alias, a watcher (`ASSET/NAME`) or a dag."""
Edge = tuple[Node, Node]


async def waits(session: AsyncSession, wanted: ColumnElement[bool], limit: int = 0) -> set[Edge]:
    """Return the edges from assets to the DAGs that wait for them.

    Args:
        limit: Only the edges of the first DAGs by id; 0: all edges.
    """
    query = (
        select(Asset.name, Dag.dag_id)
        .select_from(DagScheduleAsset)
        .join(Asset, Asset.id == DagScheduleAsset.asset_id)
        .join(Dag, Dag.dag_id == DagScheduleAsset.dag_id)
        .where(wanted, Dag.is_stale.is_(False))
        .order_by(Dag.dag_id, Asset.name)
    )
    rows = await session.execute(limited(query, limit))
    return {(("asset", asset), ("dag", dag)) for asset, dag in rows}


async def waits_for_aliases(
    session: AsyncSession, wanted: ColumnElement[bool], limit: int = 0
) -> set[Edge]:
    """Return the edges from aliases to the DAGs that wait for them.

    Args:
        limit: Only the edges of the first DAGs by id; 0: all edges.
    """
    query = (
        select(AssetAlias.name, Dag.dag_id)
        .select_from(DagScheduleAlias)
        .join(AssetAlias, AssetAlias.id == DagScheduleAlias.alias_id)
        .join(Dag, Dag.dag_id == DagScheduleAlias.dag_id)
        .where(wanted, Dag.is_stale.is_(False))
        .order_by(Dag.dag_id, AssetAlias.name)
    )
    rows = await session.execute(limited(query, limit))
    return {(("alias", alias), ("dag", dag)) for alias, dag in rows}


async def watches(session: AsyncSession, wanted: ColumnElement[bool], limit: int) -> set[Edge]:
    """Return the edges from watchers to their assets.

    Args:
        limit: Only the edges of the first assets by name.
    """
    query = (
        select(Asset.name, Watcher.name)
        .join(Asset, Asset.id == Watcher.asset_id)
        .where(wanted, Watcher.trigger_id.is_not(None))
        .order_by(Asset.name, Watcher.name)
    )
    rows = await session.execute(query.limit(limit))
    return {(("watcher", f"{asset}/{name}"), ("asset", asset)) for asset, name in rows}


async def updates(session: AsyncSession, wanted: ColumnElement[bool]) -> set[Edge]:
    """Return the edges from DAGs to the assets and aliases that their tasks update."""
    query = select(Dag.dag_id, Dag.tasks).where(wanted, Dag.is_stale.is_(False))
    return {
        (("dag", dag), outlet)
        for dag, tasks in await session.execute(query)
        for outlet in _outlets(tasks)
    }


def _outlets(tasks: Iterable[dict[str, Any]]) -> set[Node]:
    return {
        (kind, str(value["name"] if isinstance(value := outlet[kind], dict) else value))
        for task in tasks
        for outlet in task.get("outlets") or ()
        for kind in ("asset", "alias")
        if kind in outlet
    }
