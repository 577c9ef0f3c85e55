"""The routes for the page's drawings (grid, calendar and graph), and for its search."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.conftest import Api
from tests.store.seeding import NOW
from triggerer.store.dags import graph
from triggerer.store.events.emit import NewAssetEvent, record_events
from triggerer.store.schema.models import Asset, DagRun, TaskRun


async def get(api: Api, path: str, **query: Any) -> Any:
    async with api.client("viewer") as client:
        answer = await client.get(f"/api/v1{path}", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_grid_has_the_last_state_of_each_task_in_each_run(api: Api) -> None:
    async with api.database.transaction() as session:
        session.add(TaskRun(run_pk=1, task_id="work", state="success", started_at=NOW))
        for number in (2, 3):
            session.add(
                DagRun(
                    id=number,
                    dag_id="daily",
                    run_id=f"manual__{number}",
                    run_type="manual",
                    state="queued",
                    run_after=NOW,
                    queued_at=NOW,
                )
            )
    grid = await get(api, "/dags/daily/grid", limit=2)
    assert grid["tasks"] == ["work"]
    assert [run["run_id"] for run in grid["runs"]] == ["manual__3", "manual__2"]
    older = await get(api, "/dags/daily/grid", limit=2, before=grid["next_before"])
    assert [run["run_id"] for run in older["runs"]] == ["manual__1"]
    assert [older["states"][cell] for cell in older["cells"]] == ["success"]
    assert older["next_before"] is None


async def test_a_calendar_counts_the_runs_of_a_year_by_day_and_state(api: Api) -> None:
    found = await get(api, "/dags/daily/calendar", year=NOW.year)
    assert found["days"] == [{"day": NOW.date().isoformat(), "states": {"running": 1}}]
    assert (await get(api, "/dags/daily/calendar", year=1999))["days"] == []


async def test_a_graph_leads_from_an_asset_to_the_dag_and_to_its_outlet(api: Api) -> None:
    whole = await get(api, "/assets/graph")
    edges = [["asset:orders", "dag:daily"], ["dag:daily", "asset:report"]]
    assert whole["edges"] == edges
    group = await get(api, "/assets/graph", group="asset")
    assert (group["edges"], group["is_cut_short"]) == (edges, False)
    assert (await get(api, "/assets/graph", group="none"))["nodes"] == []
    near = await get(api, "/assets/graph", around="x-test://report", hops=1)
    assert {node["id"] for node in near["nodes"]} == {"asset:report", "dag:daily"}
    assert near["edges"] == edges[1:]


async def test_the_unknown_is_not_drawn(api: Api) -> None:
    async with api.client("viewer") as client:
        for path in ("/dags/none/grid", "/dags/none/calendar", "/assets/graph?around=none"):
            assert (await client.get(f"/api/v1{path}")).status_code == 404


async def test_events_are_found_by_their_key(api: Api) -> None:
    async with api.database.transaction() as session:
        await record_events(session, [NewAssetEvent(1, {}, idempotency_key="orders@id1/0/7")])
    for text in ("orders@id1/0/7", "orders/0/7"):
        [event] = (await get(api, "/assets/events/find", q=text))["items"]
        assert event["idempotency_key"] == "orders@id1/0/7"
    assert (await get(api, "/assets/events/find", q="orders/0/70"))["items"] == []


async def test_assets_and_dags_are_found_by_their_beginnings(api: Api) -> None:
    names = [one["name"] for one in (await get(api, "/assets", q="ord"))["items"]]
    assert names == ["orders"]
    assert [one["name"] for one in (await get(api, "/assets", q="x-test://rep"))["items"]] == [
        "report"
    ]
    assert [one["dag_id"] for one in (await get(api, "/dags", q="da"))["items"]] == ["daily"]
    assert (await get(api, "/dags", q="%"))["items"] == []


async def test_a_cut_graph_keeps_what_has_arrows(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    async with api.database.transaction() as session:
        session.add(Asset(name="alone", uri="x-test://alone", declared_in="a.py", created_at=NOW))
    monkeypatch.setattr(graph, "MOST_NODES", 3)
    whole = await get(api, "/assets/graph")
    assert {node["id"] for node in whole["nodes"]} == {"asset:orders", "dag:daily", "asset:report"}
    assert len(whole["edges"]) == 2
    assert whole["is_cut_short"]
