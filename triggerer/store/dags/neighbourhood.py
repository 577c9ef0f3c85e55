"""Reads the neighbourhood of an asset in the graph of watchers, assets, aliases and DAGs, step by step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from sqlalchemy import ColumnElement, Text, cast, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.json_text import dump_json
from triggerer.errors import UnknownAsset
from triggerer.store.dags.graph import AssetGraph, GraphNode, outlets_of, worst_state
from triggerer.store.listing.filters import is_asset
from triggerer.store.schema.models import (
    Asset,
    AssetAlias,
    Dag,
    DagScheduleAlias,
    DagScheduleAsset,
    Watcher,
)

MOST: Final = 100
_MOST_ROWS: Final = 2 * MOST * MOST
"""The edges that one query reads: those between 100 nodes and 100 known and 100 new neighbours."""

_Node = tuple[str, str]
"""The kind and the name of a node."""
_Edge = tuple[_Node, _Node]


async def read_neighbourhood(session: AsyncSession, around: str, hops: int) -> AssetGraph:
    """Return the nodes at most `hops` steps away from an asset, and the edges between them.

    The 100 nearest nodes are returned. The database reads their edges only, but to find the DAGs that update an asset,
    it searches the tasks of all DAGs for the asset's name.

    Args:
        around: The name or URI of the asset.
    Raises:
        UnknownAsset: There is no such asset.
    """
    name = await session.scalar(select(Asset.name).where(is_asset(around)))
    if name is None:
        raise UnknownAsset(around)
    step: list[_Node] = [("asset", name)]
    found = dict.fromkeys(step)
    edges: set[_Edge] = set()
    for _ in range(hops):
        near = await _edges_of(session, step)
        edges |= near
        step = sorted({node for edge in near for node in edge} - found.keys())
        found |= dict.fromkeys(step)
        if len(found) > MOST:
            break
    shown = dict.fromkeys(list(found)[:MOST])
    states = await _states(session, shown)
    return AssetGraph(
        nodes=[GraphNode(_id(node), *node, states.get(node)) for node in shown],
        edges=sorted(
            (_id(start), _id(end)) for start, end in edges if start in shown and end in shown
        ),
        is_cut_short=len(found) > MOST,
    )


def _id(node: _Node) -> str:
    return ":".join(node)


def _by_kind(nodes: Iterable[_Node]) -> dict[str, list[str]]:
    names: dict[str, list[str]] = defaultdict(list)
    for kind, name in nodes:
        names[kind].append(name)
    return names


async def _edges_of(session: AsyncSession, nodes: Iterable[_Node]) -> set[_Edge]:
    """Return the edges from and to these nodes. A watcher has one edge, which is found at its asset."""
    names = _by_kind(nodes)
    found: set[_Edge] = set()
    if dags := names["dag"]:
        found |= await _waits(session, Dag.dag_id.in_(dags))
        found |= await _waits_for_aliases(session, Dag.dag_id.in_(dags))
        found |= await _updates(session, Dag.dag_id.in_(dags))
    if assets := names["asset"]:
        found |= await _waits(session, Asset.name.in_(assets))
        found |= await _watches(session, assets)
    if aliases := names["alias"]:
        found |= await _waits_for_aliases(session, AssetAlias.name.in_(aliases))
    if targets := {(kind, name) for kind in ("asset", "alias") for name in names[kind]}:
        mentions = or_(*(_mentions(name) for _, name in sorted(targets)))
        found |= {edge for edge in await _updates(session, mentions) if edge[1] in targets}
    return found


async def _waits(session: AsyncSession, wanted: ColumnElement[bool]) -> set[_Edge]:
    """Return the edges from assets to the DAGs that wait for them."""
    query = (
        select(Asset.name, Dag.dag_id)
        .select_from(DagScheduleAsset)
        .join(Asset, Asset.id == DagScheduleAsset.asset_id)
        .join(Dag, Dag.dag_id == DagScheduleAsset.dag_id)
        .where(wanted, Dag.is_stale.is_(False))
        .order_by(Dag.dag_id, Asset.name)
    )
    rows = await session.execute(query.limit(_MOST_ROWS))
    return {(("asset", asset), ("dag", dag)) for asset, dag in rows}


async def _waits_for_aliases(session: AsyncSession, wanted: ColumnElement[bool]) -> set[_Edge]:
    """Return the edges from aliases to the DAGs that wait for them."""
    query = (
        select(AssetAlias.name, Dag.dag_id)
        .select_from(DagScheduleAlias)
        .join(AssetAlias, AssetAlias.id == DagScheduleAlias.alias_id)
        .join(Dag, Dag.dag_id == DagScheduleAlias.dag_id)
        .where(wanted, Dag.is_stale.is_(False))
        .order_by(Dag.dag_id, AssetAlias.name)
    )
    rows = await session.execute(query.limit(_MOST_ROWS))
    return {(("alias", alias), ("dag", dag)) for alias, dag in rows}


async def _watches(session: AsyncSession, assets: list[str]) -> set[_Edge]:
    """Return the edges from watchers to these assets."""
    query = (
        select(Asset.name, Watcher.name)
        .join(Asset, Asset.id == Watcher.asset_id)
        .where(Asset.name.in_(assets), Watcher.trigger_id.is_not(None))
        .order_by(Asset.name, Watcher.name)
    )
    rows = await session.execute(query.limit(_MOST_ROWS))
    return {(("watcher", f"{asset}/{name}"), ("asset", asset)) for asset, name in rows}


async def _updates(session: AsyncSession, wanted: ColumnElement[bool]) -> set[_Edge]:
    """Return the edges from DAGs to the outlets of their tasks."""
    query = (
        select(Dag.dag_id, Dag.tasks).where(wanted, Dag.is_stale.is_(False)).order_by(Dag.dag_id)
    )
    return {
        (("dag", dag), outlet)
        for dag, tasks in await session.execute(query)
        for outlet in outlets_of(tasks)
    }


def _mentions(name: str) -> ColumnElement[bool]:
    """Return the condition that the JSON text of a DAG's tasks has this name as a string."""
    return cast(Dag.tasks, Text).contains(dump_json(name, "a name").decode(), autoescape=True)


async def _states(session: AsyncSession, nodes: Iterable[_Node]) -> dict[_Node, str]:
    """Return the states of watchers, the worst states of the assets' watchers, and which DAGs are paused."""
    names = _by_kind(nodes)
    found: dict[_Node, str] = {}
    of_assets: dict[str, set[str]] = defaultdict(set)
    query = (
        select(Asset.name, Watcher.name, Watcher.state)
        .join(Asset, Asset.id == Watcher.asset_id)
        .where(Asset.name.in_(names["asset"]), Watcher.trigger_id.is_not(None))
    )
    for asset, name, state in await session.execute(query):
        found["watcher", f"{asset}/{name}"] = state
        of_assets[asset].add(state)
    for asset, states in of_assets.items():
        if worst := worst_state(states):
            found["asset", asset] = worst
    paused = select(Dag.dag_id).where(Dag.dag_id.in_(names["dag"]), Dag.is_paused)
    return found | {("dag", dag): "paused" for dag in await session.scalars(paused)}
