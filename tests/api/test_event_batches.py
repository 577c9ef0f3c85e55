"""Batches of CloudEvents are stored whole or not at all, with few statements."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from sqlalchemy import event, func, select

from tests.api.conftest import Api
from triggerer.operations.audit import Action
from triggerer.store.schema.models import AssetEvent, Audit, QueuedAssetEvent

BATCH = {"Content-Type": "application/cloudevents-batch+json"}


def cloud_events(*ids: str, data: Any = None) -> list[dict[str, Any]]:
    common = {"specversion": "1.0", "source": "/shop", "type": "sold", "data": data}
    return [{**common, "id": id_} for id_ in ids]


async def send(client: httpx.AsyncClient, events: list[dict[str, Any]]) -> httpx.Response:
    return await client.post(
        "/api/v1/events", params={"asset": "orders"}, content=json.dumps(events), headers=BATCH
    )


def ids_in(answer: httpx.Response) -> list[int]:
    return [item["id"] for item in answer.json()["items"]]


@contextmanager
def statements(api: Api) -> Iterator[list[str]]:
    """Yield a list of the statements that are sent in transactions during the block."""
    sent: list[str] = []

    def note(*arguments: Any) -> None:
        sent.append(arguments[2])

    engine = api.database.writer.sync_engine
    event.listen(engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        event.remove(engine, "before_cursor_execute", note)


async def test_a_batch_needs_no_statement_for_each_event(api: Api) -> None:
    new = cloud_events(*map(str, range(1_000)))
    async with api.client() as client:
        with statements(api) as of_new:
            first = await send(client, new)
        with statements(api) as of_repeat:
            again = await send(client, new)
    assert (first.status_code, again.status_code) == (201, 200)
    assert [item["extra"] for item in first.json()["items"]] == new
    assert again.json() == first.json()
    assert len(of_new) < 30
    assert len(of_repeat) < 30
    async with api.database.reading() as session:
        # One event was queued before.
        queued = select(func.count()).select_from(QueuedAssetEvent)
        assert await session.scalar(queued) == 1_001
        audited = await session.scalars(
            select(Audit.after).where(Audit.action == Action.ASSET_EMIT)
        )
        assert [after["event"] for after in audited if after] == ids_in(first)


async def test_a_batch_may_have_an_event_twice_and_events_that_are_stored(api: Api) -> None:
    async with api.client() as client:
        (known,) = ids_in(await send(client, cloud_events("b")))
        answer = await send(client, cloud_events("a", "b", "c", "a", "d"))
    a, b, c, again, d = ids_in(answer)
    assert answer.status_code == 201
    assert (b, again) == (known, a)
    assert known < a < c < d


async def test_a_batch_with_an_event_that_is_refused_stores_nothing(api: Api) -> None:
    refused = [
        [*cloud_events("new"), *cloud_events("known", data=2)],
        [*cloud_events("new"), *cloud_events("new", data=2)],
        [*cloud_events("new"), *cloud_events("other", data="\0")],
    ]
    async with api.client() as client:
        await send(client, cloud_events("known", data=1))
        before = await api.audit()
        statuses = [(await send(client, events)).status_code for events in refused]
    assert statuses == [422, 422, 422]
    assert await api.audit() == before
    async with api.database.reading() as session:
        assert await session.scalar(select(func.count()).select_from(AssetEvent)) == 2
