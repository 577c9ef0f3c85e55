"""Reads the graph that the web page draws: from assets to DAGs, and on to the assets that DAGs update."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from sqlalchemy import ColumnElement, select, true
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.store.dags.graph_edges import Edge, Node, updates, waits, waits_for_aliases
from triggerer.store.listing.filters import some_of
from triggerer.store.schema.models import Asset, Dag, Watcher

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


async def read_graph(session: AsyncSession, *, group: str | None = None) -> AssetGraph:
    """Return the graph of declared assets, aliases and DAGs. Watchers, and DAGs without edges, are left out.

    At most 2,000 nodes are returned: first each DAG with its assets, in the order of the DAGs' ids, then the assets
    without edges.

    Args:
        group: Only assets of this group, and the DAGs that wait for them or update them.
    """
    wanted: ColumnElement[bool] = Asset.declared_in.is_not(None)
    if group is not None:
        wanted &= Asset.group == group
    edges = await waits(session, wanted) | await updates(session, true())
    if group is None:
        edges |= await waits_for_aliases(session, true())
    else:
        names = set(await session.scalars(select(Asset.name).where(wanted)))
        edges = {edge for edge in edges if any(k == "asset" and n in names for k, n in edge)}
    nodes = dict.fromkeys(node for edge in sorted(edges, key=_by_dag) for node in edge)
    if len(nodes) <= MOST_NODES:
        # Add assets without edges. Up to MOST_NODES assets that the query returns are nodes already. The limit leaves
        # room for MOST_NODES + 1 further assets, so that `drawn` sees when it must cut the graph short.
        some = select(Asset.name).where(wanted).order_by(Asset.name).limit(2 * MOST_NODES + 1)
        nodes |= dict.fromkeys(("asset", name) for name in await session.scalars(some))
    return await drawn(session, nodes, edges, MOST_NODES)


def _by_dag(edge: Edge) -> tuple[str, Edge]:
    dag = next(name for kind, name in edge if kind == "dag")
    return dag, edge


async def drawn(
    session: AsyncSession, nodes: Iterable[Node], edges: Iterable[Edge], most: int
) -> AssetGraph:
    """Return the graph of the first `most` nodes: these nodes with their states, and the edges between them."""
    ids = list(nodes)
    shown = dict.fromkeys(ids[:most])
    states = await _states(session, shown)
    return AssetGraph(
        nodes=[GraphNode(_id(node), *node, states.get(node)) for node in shown],
        edges=sorted(
            (_id(start), _id(end)) for start, end in edges if start in shown and end in shown
        ),
        is_cut_short=len(ids) > most,
    )


def _id(node: Node) -> str:
    return ":".join(node)


def by_kind(nodes: Iterable[Node]) -> dict[str, list[str]]:
    """Return the names of the nodes of each kind."""
    names: dict[str, list[str]] = defaultdict(list)
    for kind, name in nodes:
        names[kind].append(name)
    return names


async def _states(session: AsyncSession, nodes: Iterable[Node]) -> dict[Node, str]:
    """Return the state of each watcher, the worst state of each asset's watchers, and `paused` for paused DAGs."""
    names = by_kind(nodes)
    found: dict[Node, str] = {}
    of_assets: dict[str, set[str]] = defaultdict(set)
    query = select(Asset.name, Watcher.name, Watcher.state).join(
        Asset, Asset.id == Watcher.asset_id
    )
    for some in some_of(names["asset"], Asset.name):
        of_some = query.where(some, Watcher.trigger_id.is_not(None))
        for asset, name, state in await session.execute(of_some):
            found["watcher", f"{asset}/{name}"] = state
            of_assets[asset].add(state)
    for asset, states in of_assets.items():
        found["asset", asset] = next(state for state in _WORST_FIRST if state in states)
    for some in some_of(names["dag"], Dag.dag_id):
        paused = await session.scalars(select(Dag.dag_id).where(some, Dag.is_paused))
        found |= {("dag", dag): "paused" for dag in paused}
    return found
