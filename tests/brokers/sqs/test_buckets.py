"""Notifications about the objects of a bucket. moto's S3 sends them through moto's SQS, in the form that AWS uses."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.brokers.sqs.driving import eventually
from tests.services.brokers.moto import open_moto
from tests.services.brokers.sqs_client import SqsClient
from triggerer import abc
from triggerer.testing import StreamHarness
from watchers.messaging import MessageQueueTrigger
from watchers.sqs import SqsEventTrigger


@pytest.fixture(scope="module")
def moto() -> Iterator[SqsClient]:
    with open_moto() as server:
        yield server


@pytest.fixture
def queue(moto: SqsClient, monkeypatch: pytest.MonkeyPatch) -> str:
    def resolve(connection: str) -> Mapping[str, Any]:
        assert connection == "sqs"
        return moto.connection | {"receive_wait_s": 1}

    monkeypatch.setattr(abc, "_resolve_connection", resolve)
    name = f"b-{uuid.uuid4().hex[:10]}"
    moto.create_queue(name)
    return name


def notified(moto: SqsClient, queue: str, *objects: str) -> str:
    """Create a bucket that notifies the queue, put the objects into it, and delete the first object.

    Return the bucket's name. The first message in the queue is the bucket's test event.
    """
    import botocore.session
    from botocore.config import Config

    bucket = f"landing-{uuid.uuid4().hex[:8]}"
    s3 = botocore.session.Session().create_client(
        "s3",
        region_name=moto.region,
        endpoint_url=moto.endpoint,
        aws_access_key_id="test",
        aws_secret_access_key="test",
        config=Config(s3={"addressing_style": "path"}),
    )
    s3.create_bucket(Bucket=bucket)
    told = {
        "QueueArn": f"arn:aws:sqs:{moto.region}:123456789012:{queue}",
        "Events": ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"],
    }
    s3.put_bucket_notification_configuration(
        Bucket=bucket, NotificationConfiguration={"QueueConfigurations": [told]}
    )
    for key in objects:
        s3.put_object(Bucket=bucket, Key=key, Body=b"{}")
    s3.delete_object(Bucket=bucket, Key=objects[0])
    return bucket


@pytest.mark.rule(
    "the key of an object in an S3 notification is form-encoded; a test event is no poison"
)
async def test_each_object_that_lands_in_a_bucket_of_s3_is_an_event(
    moto: SqsClient, queue: str
) -> None:
    async with StreamHarness() as streams:
        view = await streams.add(
            SqsEventTrigger(queue, decode="s3", match={"key": {"glob": "in/*.json"}})
        )
        keys = ["in/a b+c=d:1.json", "in/ü.json", "out/other.json"]
        bucket = await asyncio.to_thread(notified, moto, queue, *keys)
        url = moto.sdk.get_queue_url(QueueName=queue)["QueueUrl"]
        await eventually(lambda: len(view.events) == 2, "both are events")
        # The messages about the test event and the deletion are done too.
        await eventually(lambda: moto.count(url) == 0, "all is done")
        assert view.error is None
    payloads = {one.payload["key"]: one.payload for one in view.events}
    assert sorted(payloads) == sorted(keys[:2])
    first = payloads[keys[0]]
    assert sorted(first) == ["bucket", "etag", "event_time", "key", "size", "uri"]
    assert (first["uri"], first["bucket"], first["size"]) == (f"s3://{bucket}/{keys[0]}", bucket, 2)


async def test_a_notification_of_several_objects_is_an_event_for_each(
    moto: SqsClient, queue: str
) -> None:
    records = [
        {
            "eventName": "ObjectCreated:Put",
            "s3": {"bucket": {"name": "landing"}, "object": {"key": key, "size": 1}},
        }
        for key in ("one", "two", "three")
    ]
    url = moto.sdk.get_queue_url(QueueName=queue)["QueueUrl"]
    moto.send(url, [json.dumps({"Records": records})])
    async with StreamHarness() as streams:
        view = await streams.add(MessageQueueTrigger(f"sqs:///{queue}", decode="s3"))
        await eventually(lambda: len(view.events) == 3, "three events")
    assert [one.payload["uri"] for one in view.events] == [
        "s3://landing/one",
        "s3://landing/two",
        "s3://landing/three",
    ]
