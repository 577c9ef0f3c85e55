"""Reads the graph that the page draws: from watchers to assets to DAGs, and on to the assets that DAGs update."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.errors import UnknownAsset
from triggerer.store.listing.filters import is_asset
from triggerer.store.schema.models import (
    Asset,
    AssetAlias,
    Dag,
    DagScheduleAlias,
    DagScheduleAsset,
    Watcher,
)

MOST_NODES: Final = 2_000
_MOST_NEIGHBOURS: Final = 100
_WORST_FIRST: Final = ("failing", "catching_up", "waiting", "running")


@dataclass(frozen=True, slots=True)
class GraphNode:
    """An asset, an alias, a watcher (`ASSET/NAME`) or a DAG."""

    id: str
    kind: str
    """asset, alias, watcher or dag."""
    label: str
    state: str | None = None
    """The state of a watcher, or the worst state of an asset's watchers; for a DAG, paused or None."""


@dataclass(frozen=True, slots=True)
class AssetGraph:
    """A graph whose edges lead from a watcher to its asset, from an asset to DAGs, and from a DAG to its outlets."""

    nodes: list[GraphNode]
    edges: list[tuple[str, str]]
    """Pairs of node ids."""
    is_cut_short: bool
    """True if some nodes are left out, because the graph has too many."""


@dataclass(slots=True)
class _WholeGraph:
    """All nodes and edges, by id."""

    nodes: dict[str, GraphNode] = field(default_factory=dict)
    edges: set[tuple[str, str]] = field(default_factory=set)

    def add(self, kind: str, name: str, state: str | None = None) -> str:
        node_id = f"{kind}:{name}"
        if node_id not in self.nodes or state is not None:
            self.nodes[node_id] = GraphNode(node_id, kind, name, state)
        return node_id


async def read_graph(
    session: AsyncSession, *, around: str | None = None, hops: int = 2, group: str | None = None
) -> AssetGraph:
    """Return the graph of all that DAG files declare, or the neighbourhood of one asset.

    Args:
        around: The name or URI of an asset. Then only the watchers of this asset are returned, and the nodes at most
            `hops` edges away from it: the 100 nearest at most.
        group: Only assets of this group, and the DAGs that wait for them or update them.
    Raises:
        UnknownAsset: There is no asset `around`.
    """
    whole = await _read(session, with_watchers=around is not None, group=group)
    if around is None:
        return _cut(whole, _connected_first(whole), MOST_NODES)
    name = await session.scalar(select(Asset.name).where(is_asset(around)))
    if name is None:
        raise UnknownAsset(around)
    centre = whole.add("asset", name)
    return _cut(whole, _near(centre, whole.edges, hops), _MOST_NEIGHBOURS)


async def _read(session: AsyncSession, *, with_watchers: bool, group: str | None) -> _WholeGraph:
    whole = _WholeGraph()
    states: dict[int, set[str]] = defaultdict(set)
    watchers = (await session.execute(select(Watcher.asset_id, Watcher.name, Watcher.state))).all()
    for asset_id, _, state in watchers:
        states[asset_id].add(state)
    query = select(Asset.id, Asset.name).where(Asset.declared_in.is_not(None))
    if group is not None:
        query = query.where(Asset.group == group)
    assets = {
        asset_id: whole.add("asset", name, _worst(states[asset_id]))
        for asset_id, name in await session.execute(query.order_by(Asset.name))
    }
    names = {asset_id: whole.nodes[node].label for asset_id, node in assets.items()}
    if with_watchers:
        for asset_id, name, state in watchers:
            if asset_id in assets:
                watcher = whole.add("watcher", f"{names[asset_id]}/{name}", state)
                whole.edges.add((watcher, assets[asset_id]))
    await _add_dags(session, whole, assets, is_whole=group is None)
    return whole


async def _add_dags(
    session: AsyncSession, whole: _WholeGraph, assets: dict[int, str], *, is_whole: bool
) -> None:
    rows = (
        await session.execute(
            select(Dag.dag_id, Dag.is_paused, Dag.tasks)
            .where(Dag.is_stale.is_(False))
            .order_by(Dag.dag_id)
        )
    ).all()
    present = {row.dag_id: "paused" if row.is_paused else None for row in rows}
    for row in rows:
        outlets = {name for task in row.tasks for name in _outlets(task.get("outlets") or ())}
        for kind, name in sorted(outlets):
            if is_whole or f"{kind}:{name}" in whole.nodes:
                whole.edges.add(
                    (whole.add("dag", row.dag_id, present[row.dag_id]), whole.add(kind, name))
                )
    waits = await session.execute(select(DagScheduleAsset.dag_id, DagScheduleAsset.asset_id))
    for dag_id, asset_id in waits:
        if dag_id in present and asset_id in assets:
            whole.edges.add((assets[asset_id], whole.add("dag", dag_id, present[dag_id])))
    if is_whole:
        aliases = await session.execute(
            select(DagScheduleAlias.dag_id, AssetAlias.name).join(
                AssetAlias, AssetAlias.id == DagScheduleAlias.alias_id
            )
        )
        for dag_id, name in aliases:
            if dag_id in present:
                whole.edges.add(
                    (whole.add("alias", name), whole.add("dag", dag_id, present[dag_id]))
                )


def _outlets(outlets: Iterable[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    for outlet in outlets:
        for kind in ("asset", "alias"):
            if kind in outlet:
                value = outlet[kind]
                yield kind, str(value["name"] if isinstance(value, dict) else value)


def _worst(states: set[str]) -> str | None:
    return next((state for state in _WORST_FIRST if state in states), None)


def _connected_first(whole: _WholeGraph) -> dict[str, None]:
    """Return each DAG with its assets, then the assets that no DAG has.

    If the end is cut off, the connected nodes remain.
    """
    by_dag = sorted(
        whole.edges, key=lambda edge: max(edge, key=lambda node: node.startswith("dag:"))
    )
    return dict.fromkeys(node for edge in by_dag for node in edge) | dict.fromkeys(whole.nodes)


def _near(centre: str, edges: Iterable[tuple[str, str]], hops: int) -> list[str]:
    """Return the nodes at most `hops` edges away from `centre`, nearest first."""
    beside: dict[str, list[str]] = defaultdict(list)
    for start, end in edges:
        beside[start].append(end)
        beside[end].append(start)
    found = {centre: None}
    step = [centre]
    for _ in range(hops):
        step = [one for node in step for one in sorted(beside[node]) if one not in found]
        found |= dict.fromkeys(step)
        if len(found) > _MOST_NEIGHBOURS:
            break
    return list(found)


def _cut(whole: _WholeGraph, chosen: Iterable[str], most: int) -> AssetGraph:
    ids = list(chosen)
    shown = dict.fromkeys(ids[:most])
    return AssetGraph(
        nodes=[whole.nodes[one] for one in shown],
        edges=sorted(edge for edge in whole.edges if edge[0] in shown and edge[1] in shown),
        is_cut_short=len(ids) > most,
    )
