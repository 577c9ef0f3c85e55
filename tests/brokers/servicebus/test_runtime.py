"""ServiceBusEventTrigger in the real runtime, on the test Service Bus."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import anyio
import pytest

from tests.brokers.servicebus.conftest import MakeQueue
from tests.services.brokers.servicebus import ServiceBusServer
from triggerer import abc
from triggerer.testing import StreamHarness
from watchers.messaging import MessageQueueTrigger
from watchers.servicebus import ServiceBusEventTrigger


@pytest.fixture(autouse=True)
def connected(servicebus_server: ServiceBusServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(connection: str) -> Mapping[str, Any]:
        assert connection == "servicebus"
        return {"connection_string": servicebus_server.connection_string}

    monkeypatch.setattr(abc, "_resolve_connection", resolve)


def created(key: str, api: str = "PutBlob", **more: str) -> dict[str, Any]:
    return {
        "eventType": "Microsoft.Storage.BlobCreated",
        "subject": f"/blobServices/default/containers/landing/blobs/{key}",
        "eventTime": "2026-11-24T22:00:00Z",
        "data": {
            "api": api,
            "url": f"https://shop.blob.core.windows.net/landing/{key.replace(' ', '%20')}",
            "contentLength": 17,
            "eTag": "0x8",
        },
        **more,
    }


async def test_each_blob_that_event_grid_tells_of_is_an_event(make_queue: MakeQueue) -> None:
    queue = make_queue(lock_s=30.0)
    deleted = created("in/gone.json", eventType="Microsoft.Storage.BlobDeleted")
    empty = created("in/begun.json", "CreateFile")
    queue.send(
        json.dumps(created("in/a b.json")),
        json.dumps([deleted, empty, created("in/two.json"), created("out/no.json")]),
    )
    async with StreamHarness() as streams:
        view = await streams.add(
            MessageQueueTrigger(
                f"servicebus:///{queue.path}", decode="eventgrid", match={"key": {"prefix": "in/"}}
            )
        )
        with anyio.fail_after(30):
            while queue.values or len(view.events) < 2:  # noqa: ASYNC110  (a server sends no notice)
                await anyio.sleep(0.05)
    uris = [one.payload["uri"] for one in view.events]
    assert sorted(uris) == [
        "abfss://landing@shop.dfs.core.windows.net/in/a b.json",
        "abfss://landing@shop.dfs.core.windows.net/in/two.json",
    ]
    assert view.events[0].payload["size"] == 17


async def test_a_binary_cloudevent_is_read_as_its_content_type_says(make_queue: MakeQueue) -> None:
    queue = make_queue(lock_s=30.0)
    event = {"id": "1", "source": "/shop", "specversion": "1.0", "type": "order.placed"}
    queue.server.send(
        queue.path,
        ["seven"],
        properties={f"cloudEvents:{name}": text for name, text in event.items()},
        content_type="text/plain",
    )
    async with StreamHarness() as streams:
        view = await streams.add(
            ServiceBusEventTrigger(
                queue.path, decode="cloudevents", match={"type": "order.placed", "data": "seven"}
            )
        )
        with anyio.fail_after(30):
            while queue.values or not view.events:  # noqa: ASYNC110  (a server sends no notice)
                await anyio.sleep(0.05)
    assert view.events[0].payload["value"] == {**event, "data": "seven"}


async def test_a_message_of_properties_alone_is_an_event_whose_value_is_null(
    make_queue: MakeQueue,
) -> None:
    """An empty body must not be rejected, although it is no JSON. A null property must not become the text "None"."""
    queue = make_queue(lock_s=30.0)
    queue.server.send(queue.path, [""], properties={"kind": "done", "by": None})
    async with StreamHarness() as streams:
        view = await streams.add(
            ServiceBusEventTrigger(queue.path, match={"@properties.kind": "done"})
        )
        with anyio.fail_after(30):
            while queue.values:  # noqa: ASYNC110  (a server sends no notice)
                await anyio.sleep(0.05)
    (event,) = view.events
    assert event.payload["value"] is None
    assert event.payload["properties"] == {"kind": "done"}


async def test_siblings_share_one_stream_and_each_gets_what_it_asked_for(
    make_queue: MakeQueue,
) -> None:
    queue = make_queue(lock_s=30.0)
    queue.send('{"n": 1}', "not json", '{"n": 3}')
    async with StreamHarness() as streams:
        low = await streams.add(ServiceBusEventTrigger(queue.path, match="value.n <= 2"))
        high = await streams.add(
            ServiceBusEventTrigger(
                queue.path.upper(),
                match={"n": {"gt": 2}},
                extra={"n": "n", "again": "@deliveries"},
            )
        )
        with anyio.fail_after(30):
            while queue.values or not (low.events and high.events):  # noqa: ASYNC110
                await anyio.sleep(0.05)
        assert len(streams.groups) == 1
    assert [one.payload["value"] for one in low.events] == [{"n": 1}]
    assert [one.payload for one in high.events] == [{"n": 3, "again": 1}]
    # Both watchers rejected the message that they could not read.
    assert [one["value"] for one in queue.server.dead_letters(queue.path)] == ["not json"]
