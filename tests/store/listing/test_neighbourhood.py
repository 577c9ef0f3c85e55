"""The neighbourhood of an asset: the nodes before and after the asset, at most 100."""

from __future__ import annotations

from typing import Any

import pytest

from tests.store.seeding import NOW, add_alias, add_asset, add_dag, asset_json
from triggerer.errors import UnknownAsset
from triggerer.store.dags.graph import AssetGraph
from triggerer.store.dags.neighbourhood import MOST, read_neighbourhood
from triggerer.store.database.transactions import Database
from triggerer.store.schema.models import Watcher

ODD = 'the "ö" of 100%/_'


async def _read(database: Database, around: str, hops: int) -> AssetGraph:
    async with database.reading() as session:
        return await read_neighbourhood(session, around, hops)


async def _add_updating_dag(database: Database, dag_id: str, *outlets: dict[str, Any]) -> None:
    tasks = [{"task_id": "work", "upstream": [], "outlets": list(outlets), "inlets": []}]
    await add_dag(database, dag_id, None, tasks=tasks)


async def test_steps_lead_over_dags_assets_and_aliases(database: Database) -> None:
    await add_asset(database, 1, "a")
    await add_asset(database, 2, ODD)
    await add_alias(database, 1, "alias")
    await add_dag(database, "waits", asset_json("a"), assets=[1], is_paused=True)
    await add_dag(database, "waits_too", {"alias": {"name": "alias"}}, aliases=[1])
    await _add_updating_dag(database, "updates", asset_json(ODD), {"alias": {"name": "alias"}})
    async with database.transaction() as session:
        session.add(Watcher(asset_id=2, name="deleted", path="a.py", updated_at=NOW))
    near = await _read(database, f"x-test://{ODD}", 1)
    assert near.edges == [("dag:updates", f"asset:{ODD}")]
    far = await _read(database, ODD, 3)
    assert [node.id for node in far.nodes] == [
        f"asset:{ODD}",
        "dag:updates",
        "alias:alias",
        "dag:waits_too",
    ]
    assert far.edges == [
        ("alias:alias", "dag:waits_too"),
        ("dag:updates", "alias:alias"),
        ("dag:updates", f"asset:{ODD}"),
    ]
    assert not far.is_cut_short
    [_, waits] = (await _read(database, "a", 1)).nodes
    assert (waits.id, waits.state) == ("dag:waits", "paused")


async def test_only_the_nearest_are_returned(database: Database) -> None:
    await add_asset(database, 1, "a")
    for number in range(MOST + 20):
        await add_dag(database, f"dag_{number:03}", asset_json("a"), assets=[1])
    found = await _read(database, "a", 9)
    assert found.is_cut_short
    assert len(found.nodes) == MOST
    assert len(found.edges) == MOST - 1


async def test_an_unknown_asset_has_no_neighbourhood(database: Database) -> None:
    with pytest.raises(UnknownAsset):
        await _read(database, "none", 1)
