"""PubSubEventTrigger in the real runtime, on a double of the Pub/Sub service."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from google.pubsub_v1 import PubsubMessage, ReceivedMessage

from producers.pubsub.message import read_delivery
from tests.brokers.pubsub.test_scenarios import eventually
from tests.services.brokers.pubsub_double import PubSubDouble
from triggerer import abc
from triggerer.errors import DagError
from triggerer.pluginkit.dumping import dump_message, load_message
from triggerer.testing import StreamHarness
from watchers.messaging import MessageQueueTrigger
from watchers.pubsub import PubSubEventTrigger


@pytest.fixture(autouse=True)
def connected(double: PubSubDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(connection: str) -> Mapping[str, Any]:
        assert connection == "pubsub"
        return {
            "emulator_host": double.host,
            "project": "tests",
            "redelivery_delay_s": 0.05,
            "redelivery_delay_max_s": 0.1,
        }

    monkeypatch.setattr(abc, "_resolve_connection", resolve)


async def test_a_message_of_attributes_alone_is_an_event_whose_value_is_null(
    double: PubSubDouble, name: str
) -> None:
    """An empty body must not be rejected, although it is no JSON."""
    double.create(name)
    double.publish(name, [""], attributes={"kind": "done"})
    async with StreamHarness() as streams:
        view = await streams.add(PubSubEventTrigger(name, match={"@attributes.kind": "done"}))
        await eventually(lambda: all(one.is_acked for one in double.entries(name)), "it is acked")
    (event,) = view.events
    assert event.payload["value"] is None
    assert event.payload["attributes"] == {"kind": "done"}


async def test_siblings_share_one_stream_and_each_gets_what_it_asked_for(
    double: PubSubDouble, name: str
) -> None:
    double.create(name, enable_message_ordering=True)
    double.publish(name, ['{"n": 1}', "not json", '{"n": 3}'], key="k", attributes={"a": "b"})
    async with StreamHarness() as streams:
        low = await streams.add(PubSubEventTrigger(name, match={"n": {"le": 2}}))
        high = await streams.add(
            MessageQueueTrigger(f"pubsub:///{name}", match={"n": {"gt": 2}}, extra={"n": "n"})
        )
        await eventually(lambda: all(one.is_acked for one in double.entries(name)), "all are acked")
        assert double.counts["StreamingPull"] == 1
        (event,) = low.events
        assert isinstance(event.payload.pop("timestamp"), int)
        assert event.payload == {
            "value": {"n": 1},
            "message_id": "1",
            "subscription": f"projects/tests/subscriptions/{name}",
            "ordering_key": "k",
            "attributes": {"a": "b"},
        }
        assert [one.payload for one in high.events] == [{"n": 3}]
    assert [one.attempts for one in double.entries(name)] == [1, 1, 1]


async def test_a_name_and_the_path_of_the_same_subscription_are_one_stream(
    double: PubSubDouble, name: str
) -> None:
    double.create(name)
    path = f"projects/tests/subscriptions/{name}"
    async with StreamHarness() as streams:
        short = await streams.add(PubSubEventTrigger(name))
        long = await streams.add(PubSubEventTrigger(path))
        (group,) = streams.groups.values()
        assert group.subscribers == 2
        double.publish(name, ["1", "2", "3"])
        await eventually(lambda: all(one.is_acked for one in double.entries(name)), "all are acked")
        for each in (short, long):
            assert [event.payload["value"] for event in each.events] == [1, 2, 3]
    assert double.counts["StreamingPull"] == 1


@pytest.mark.parametrize("key", ["", "k\u00e9"])
def test_a_message_says_the_same_live_and_from_another_process_or_the_store(key: str) -> None:
    received = ReceivedMessage(
        ack_id="a",
        delivery_attempt=3,
        message=PubsubMessage(
            data=b'{"n": 1}', message_id="7", ordering_key=key, attributes={"a": "b", "c": ""},
            publish_time=datetime(2026, 1, 2, 3, 4, 5, 678_999, tzinfo=UTC),
        ),
    )  # fmt: skip
    live = read_delivery(ReceivedMessage.pb(received), "projects/tests/subscriptions/s").message
    extra = PubSubEventTrigger("s").default_extra
    assert extra(live, 1)["timestamp"] == 1767323045678
    assert extra(live, 1)["attributes"] == {"a": "b", "c": ""}
    assert extra(live, 1)["attributes"] is not live.attributes
    for other in (pickle.loads(pickle.dumps(live)), load_message(dump_message(live))):
        assert extra(other, 1) == extra(live, 1)
        assert list(extra(other, 1)) == list(extra(live, 1))


def test_what_is_named_by_another_path_is_another_stream() -> None:
    path = "projects/other/subscriptions/s"
    assert PubSubEventTrigger(path).shared_stream_key() == ("pubsub", "pubsub", path)
    assert PubSubEventTrigger("s").shared_stream_key() == ("pubsub", "pubsub", "s")


def test_a_path_is_a_stream_of_its_own_where_the_project_is_the_credentials(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(abc, "_resolve_connection", lambda _: {})
    path = "projects/tests/subscriptions/s"
    assert PubSubEventTrigger(path).shared_stream_key() == ("pubsub", "pubsub", path)


async def test_an_object_that_lands_in_a_bucket_of_cloud_storage_is_an_event(
    double: PubSubDouble, name: str
) -> None:
    double.create(name)
    described = {"bucket": "landing", "name": "a b/c.json", "size": "17", "etag": "x"}
    attributes = {
        "eventType": "OBJECT_FINALIZE",
        "bucketId": "landing",
        "objectId": "a b/c.json",
        "eventTime": "2026-11-24T22:00:00Z",
        "payloadFormat": "JSON_API_V1",
    }
    double.publish(name, [orjson.dumps(described)], attributes=attributes)
    async with StreamHarness() as streams:
        view = await streams.add(PubSubEventTrigger(name, decode="gcs"))
        await eventually(lambda: view.events, "an event")
    assert view.events[0].payload["uri"] == "gs://landing/a b/c.json"
    assert view.events[0].payload["size"] == 17


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"subscription": ""}, "subscription must be a non-empty text"),
        ({"subscription": "projects/p/topics/t"}, "is a topic, and messages are read from a sub"),
        ({"subscription": "projects//subscriptions/s"}, "names no subscription .write its name"),
        ({"subscription": "subscriptions/s"}, "names no subscription"),
        ({"subscription": "s", "match": {"@offset": 1}}, "@offset"),
        ({"subscription": "s", "decode": "xml"}, "decode must be"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(DagError, match=message):
        PubSubEventTrigger(**arguments)
