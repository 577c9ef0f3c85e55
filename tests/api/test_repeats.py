"""Requests with an `Idempotency-Key` that come at the same moment, on each database that we support."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest
from sqlalchemy import func, select

from tests.api.conftest import Api, filled, make_context
from tests.store.seeding import NOW
from triggerer.api.openapi import description
from triggerer.store.database.opening import open_database
from triggerer.store.schema.models import AssetEvent, Dag, DagRun

V1 = "/api/v1"
EVENTS = f"{V1}/assets/events"
RUNS = f"{V1}/dags/daily/dagRuns"


@pytest.fixture
async def apis(store_url: str, tmp_path: Path) -> AsyncIterator[tuple[Api, Api]]:
    """Two APIs on one database, each with connections of its own, as in two processes."""
    async with open_database(store_url) as one, open_database(store_url) as other:
        first = await filled(one, tmp_path)
        async with one.transaction() as session:
            session.add(Dag(dag_id="weekly", path="a.py", schedule=None, tasks=[], updated_at=NOW))
        yield first, Api(make_context(first.context.settings, other), first.tokens)


async def at_once(
    apis: tuple[Api, Api], requests: list[tuple[str, dict[str, Any]]]
) -> Counter[int]:
    """Send all requests at once with one key, alternately to the two APIs; count the answers by status.

    A request with the answer 503 is sent again.
    """
    statuses: Counter[int] = Counter()

    async def send(api: Api, path: str, body: dict[str, Any]) -> None:
        async with api.client() as client:
            status = 503
            while status == 503:  # too many requests at once, or SQLite's file is locked
                answer = await client.post(path, json=body, headers={"Idempotency-Key": "k"})
                status = answer.status_code
        statuses[status] += 1

    async with anyio.create_task_group() as tasks:
        for number, (path, body) in enumerate(requests):
            tasks.start_soon(send, apis[number % 2], path, body)
    return statuses


async def stored(api: Api) -> tuple[int, int]:
    """Return the numbers of events and runs, without the event and the run of the fixture."""
    async with api.database.reading() as session:
        events = await session.scalar(select(func.count()).select_from(AssetEvent)) or 0
        runs = await session.scalar(select(func.count()).select_from(DagRun)) or 0
    return events - 1, runs - 1


@pytest.mark.parametrize(
    "requests",
    [
        [(EVENTS, {"asset": "orders"}), (EVENTS, {"asset": "report"})],
        [(RUNS, {}), (f"{V1}/dags/weekly/dagRuns", {})],
        [(RUNS, {"run_id": "a"}), (RUNS, {"run_id": "b"})],
        [(EVENTS, {"asset": "orders"}), (RUNS, {})],
    ],
    ids=["two assets", "two DAGs", "two run ids", "an event and a run"],
)
async def test_a_key_that_two_requests_use_at_the_same_moment_serves_one_of_them(
    apis: tuple[Api, Api], requests: list[tuple[str, dict[str, Any]]]
) -> None:
    # Each of the two requests goes to both processes.
    statuses = await at_once(apis, [*requests, *reversed(requests)] * 5)
    assert statuses == {201: 1, 200: 9, 422: 10}
    assert sum(await stored(apis[0])) == 1


def test_the_description_has_the_answer_to_a_repeat() -> None:
    paths = orjson.loads(description())["paths"]
    for path in (EVENTS, f"{V1}/dags/{{dag_id}}/dagRuns", f"{V1}/events", f"{V1}/events/{{hook}}"):
        answers = paths[path]["post"]["responses"]
        assert answers["200"]["content"] == answers["201"]["content"]
