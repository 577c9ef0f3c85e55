"""Reads the graph that the page draws: from watchers to assets to DAGs, and on to the assets that DAGs update."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.store.schema.models import (
    Asset,
    AssetAlias,
    Dag,
    DagScheduleAlias,
    DagScheduleAsset,
    Watcher,
)

MOST_NODES: Final = 2_000
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


async def read_graph(session: AsyncSession, *, group: str | None = None) -> AssetGraph:
    """Return the graph of all that DAG files declare, without the watchers.

    Args:
        group: Only assets of this group, and the DAGs that wait for them or update them.
    """
    whole = await _read(session, group)
    ids = list(_connected_first(whole))
    shown = dict.fromkeys(ids[:MOST_NODES])
    return AssetGraph(
        nodes=[whole.nodes[one] for one in shown],
        edges=sorted(edge for edge in whole.edges if edge[0] in shown and edge[1] in shown),
        is_cut_short=len(ids) > MOST_NODES,
    )


async def _read(session: AsyncSession, group: str | None) -> _WholeGraph:
    whole = _WholeGraph()
    states: dict[int, set[str]] = defaultdict(set)
    watchers = (
        select(Watcher.asset_id, Watcher.state).where(Watcher.trigger_id.is_not(None)).distinct()
    )
    for asset_id, state in await session.execute(watchers):
        states[asset_id].add(state)
    query = select(Asset.id, Asset.name).where(Asset.declared_in.is_not(None))
    if group is not None:
        query = query.where(Asset.group == group)
    assets = {
        asset_id: whole.add("asset", name, worst_state(states[asset_id]))
        for asset_id, name in await session.execute(query.order_by(Asset.name))
    }
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
        for kind, name in sorted(outlets_of(row.tasks)):
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


def outlets_of(tasks: Iterable[dict[str, Any]]) -> set[tuple[str, str]]:
    """Return what the tasks of a DAG update: the kind, asset or alias, and the name."""
    return {
        (kind, str(value["name"] if isinstance(value := outlet[kind], dict) else value))
        for task in tasks
        for outlet in task.get("outlets") or ()
        for kind in ("asset", "alias")
        if kind in outlet
    }


def worst_state(states: set[str]) -> str | None:
    """Return the worst of the states of an asset's watchers, or None if there is none."""
    return next((state for state in _WORST_FIRST if state in states), None)


def _connected_first(whole: _WholeGraph) -> dict[str, None]:
    """Return each DAG with its assets, then the assets that no DAG has.

    If the end is cut off, the connected nodes remain.
    """
    by_dag = sorted(
        whole.edges, key=lambda edge: max(edge, key=lambda node: node.startswith("dag:"))
    )
    return dict.fromkeys(node for edge in by_dag for node in edge) | dict.fromkeys(whole.nodes)
