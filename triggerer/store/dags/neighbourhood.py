"""Reads the neighbourhood of an asset in the graph of watchers, assets, aliases and DAGs, one hop after the other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sqlalchemy import ColumnElement, Text, cast, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.text.json_text import dump_json
from triggerer.errors import UnknownAsset
from triggerer.store.dags.graph import AssetGraph, by_kind, drawn
from triggerer.store.dags.graph_edges import (
    Edge,
    Node,
    updates,
    waits,
    waits_for_aliases,
    watches,
)
from triggerer.store.listing.filters import is_asset
from triggerer.store.schema.models import Asset, AssetAlias, Dag

MOST: Final = 100
_MOST_ROWS: Final = 2 * MOST * MOST
"""The most edges that one query reads.

A query reads the edges of at most 100 nodes, and at most 100 nodes are known already. So at most 10,000 of the edges
lead to known nodes. If the query reaches this limit, the other 10,000 edges lead to at least 100 new nodes, with which
the search ends. So the edges beyond the limit are not needed.
"""


async def read_neighbourhood(session: AsyncSession, around: str, hops: int) -> AssetGraph:
    """Return the nodes at most `hops` steps away from an asset, and the edges between them.

    At most 100 nodes are returned, the nearest first.

    Args:
        around: The name or URI of the asset.
    Raises:
        UnknownAsset: There is no such asset.
    """
    name = await session.scalar(select(Asset.name).where(is_asset(around)))
    if name is None:
        raise UnknownAsset(around)
    step: list[Node] = [("asset", name)]
    found = dict.fromkeys(step)
    edges: set[Edge] = set()
    for _ in range(hops):
        near = await _edges_of(session, step)
        edges |= near
        step = sorted({node for edge in near for node in edge} - found.keys())
        found |= dict.fromkeys(step)
        if len(found) > MOST:
            break
    return await drawn(session, found, edges, MOST)


async def _edges_of(session: AsyncSession, nodes: Iterable[Node]) -> set[Edge]:
    """Return the edges from and to these nodes. Watchers are skipped: a watcher's only edge was read with its asset."""
    names = by_kind(nodes)
    found: set[Edge] = set()
    if dags := names["dag"]:
        found |= await waits(session, Dag.dag_id.in_(dags), _MOST_ROWS)
        found |= await waits_for_aliases(session, Dag.dag_id.in_(dags), _MOST_ROWS)
        found |= await updates(session, Dag.dag_id.in_(dags))
    if assets := names["asset"]:
        found |= await waits(session, Asset.name.in_(assets), _MOST_ROWS)
        found |= await watches(session, Asset.name.in_(assets), _MOST_ROWS)
    if aliases := names["alias"]:
        found |= await waits_for_aliases(session, AssetAlias.name.in_(aliases), _MOST_ROWS)
    if targets := {(kind, name) for kind in ("asset", "alias") for name in names[kind]}:
        mentions = or_(*(_mentions(name) for _, name in sorted(targets)))
        found |= {edge for edge in await updates(session, mentions) if edge[1] in targets}
    return found


def _mentions(name: str) -> ColumnElement[bool]:
    """Return the condition that the JSON text of a DAG's tasks has this name as a string."""
    return cast(Dag.tasks, Text).contains(dump_json(name, "a name").decode(), autoescape=True)
