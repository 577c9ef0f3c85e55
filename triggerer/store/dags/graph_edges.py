"""Reads the edges of the graph that the web page draws: between watchers, assets, aliases and DAGs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import ColumnElement, Select, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

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
        limit: How many edges to return at most, in the order of the DAGs' ids; 0 returns all.
    """
    links = select(Asset.name, Dag.dag_id).join_from(
        DagScheduleAsset, Asset, Asset.id == DagScheduleAsset.asset_id
    )
    query = links.join(Dag, Dag.dag_id == DagScheduleAsset.dag_id).where(wanted)
    return await _edges_to_dags(session, "asset", query, Asset.name, limit)


async def waits_for_aliases(
    session: AsyncSession, wanted: ColumnElement[bool], limit: int = 0
) -> set[Edge]:
    """Return the edges from aliases to the DAGs that wait for them.

    Args:
        limit: How many edges to return at most, in the order of the DAGs' ids; 0 returns all.
    """
    links = select(AssetAlias.name, Dag.dag_id).join_from(
        DagScheduleAlias, AssetAlias, AssetAlias.id == DagScheduleAlias.alias_id
    )
    query = links.join(Dag, Dag.dag_id == DagScheduleAlias.dag_id).where(wanted)
    return await _edges_to_dags(session, "alias", query, AssetAlias.name, limit)


async def _edges_to_dags(
    session: AsyncSession,
    kind: str,
    query: Select[str, str],
    name: InstrumentedAttribute[str],
    limit: int,
) -> set[Edge]:
    """Return the edges for the rows (name, DAG id) of the query. Stale DAGs are left out."""
    query = query.where(Dag.is_stale.is_(False)).order_by(Dag.dag_id, name)
    return {
        ((kind, one), ("dag", dag)) for one, dag in await session.execute(limited(query, limit))
    }


async def watches(session: AsyncSession, wanted: ColumnElement[bool], limit: int) -> set[Edge]:
    """Return the edges from watchers to their assets.

    Args:
        limit: How many edges to return at most, in the order of the assets' names.
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
