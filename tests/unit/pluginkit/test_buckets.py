"""Objects that were written to buckets, read from notifications in the forms that the three clouds document."""

import json
from typing import Any

import pytest

from triggerer.abc import BrokerMessage
from triggerer.errors import DagError
from triggerer.pluginkit.buckets import FIELDS, read_eventgrid, read_gcs, read_s3
from triggerer.pluginkit.decoding import find_decoding


def message(value: Any, **attributes: str) -> BrokerMessage:
    return BrokerMessage(json.dumps(value).encode(), attributes=attributes)


def s3_record(key: str, event: str = "ObjectCreated:Put", **more: Any) -> dict[str, Any]:
    return {
        "eventVersion": "2.1",
        "eventSource": "aws:s3",
        "eventTime": "2026-11-22T06:00:00.000Z",
        "eventName": event,
        "s3": {
            "bucket": {"name": "landing"},
            "object": {"key": key, "size": 12, "eTag": "abc", "sequencer": "00", **more},
        },
    }


LANDED = {
    "uri": "s3://landing/a b/c=d:1.json",
    "bucket": "landing",
    "key": "a b/c=d:1.json",
    "size": 12,
    "etag": "abc",
    "event_time": "2026-11-22T06:00:00.000Z",
}


@pytest.mark.rule(
    "the key of an object in an S3 notification is form-encoded; a test event is no poison"
)
def test_an_objects_key_in_an_s3_notification_is_form_encoded() -> None:
    notification = {"Records": [s3_record("a+b/c%3Dd%3A1.json")]}
    assert read_s3(message(notification)) == [LANDED]


@pytest.mark.rule(
    "the key of an object in an S3 notification is form-encoded; a test event is no poison"
)
def test_s3_test_event_is_no_poison_message() -> None:
    assert read_s3(message({"Service": "Amazon S3", "Event": "s3:TestEvent"})) == []


def test_one_s3_notification_may_hold_several_objects_and_deletions_do_not_fire() -> None:
    records = [
        s3_record("one"),
        s3_record("two", "ObjectRemoved:Delete"),
        s3_record("three", "s3:ObjectCreated:CompleteMultipartUpload"),
    ]
    assert [found["key"] for found in read_s3(message({"Records": records}))] == ["one", "three"]


def test_an_s3_notification_may_come_through_a_topic_or_from_eventbridge() -> None:
    wrapped = json.dumps({"Records": [s3_record("a+b/c%3Dd%3A1.json")]})
    assert read_s3(message({"Type": "Notification", "Message": wrapped})) == [LANDED]
    detail = {
        "bucket": {"name": "landing"},
        "object": {"key": LANDED["key"], "size": 12, "etag": "abc"},
    }
    event = {
        "source": "aws.s3",
        "detail-type": "Object Created",
        "time": LANDED["event_time"],
        "detail": detail,
    }
    assert read_s3(message(event)) == [LANDED]
    assert read_s3(message({**event, "detail-type": "Object Deleted"})) == []


GCS = {"bucketId": "landing", "objectId": "a b/1.json", "eventTime": "2026-11-22T06:00:00Z"}


def test_cloud_storage_tells_of_what_was_finished_with_or_without_its_description() -> None:
    described = message(
        {"name": "a b/1.json", "bucket": "landing", "size": "12", "etag": "CJ=="},
        eventType="OBJECT_FINALIZE",
        payloadFormat="JSON_API_V1",
        **GCS,
    )
    assert read_gcs(described) == [
        {
            "uri": "gs://landing/a b/1.json",
            "bucket": "landing",
            "key": "a b/1.json",
            "size": 12,
            "etag": "CJ==",
            "event_time": "2026-11-22T06:00:00Z",
        }
    ]
    bare = BrokerMessage(
        b"", attributes={"eventType": "OBJECT_FINALIZE", "payloadFormat": "NONE", **GCS}
    )
    (found,) = read_gcs(bare)
    assert (found["key"], found["size"], found["etag"]) == ("a b/1.json", None, None)


@pytest.mark.parametrize("kind", ["OBJECT_DELETE", "OBJECT_ARCHIVE", "OBJECT_METADATA_UPDATE"])
def test_nothing_else_of_cloud_storage_fires(kind: str) -> None:
    assert read_gcs(BrokerMessage(b"", attributes={"eventType": kind, **GCS})) == []


def test_cloud_storage_by_eventarc_comes_as_a_cloudevent() -> None:
    event = message(
        {"bucket": "landing", "name": "x", "size": "1", "etag": "e"},
        **{
            "ce-id": "1",
            "ce-source": "//storage",
            "ce-specversion": "1.0",
            "ce-type": "google.cloud.storage.object.v1.finalized",
            "ce-time": "2026-11-22T06:00:00Z",
        },
    )
    (found,) = read_gcs(event)
    assert (found["uri"], found["event_time"]) == ("gs://landing/x", "2026-11-22T06:00:00Z")


def blob(api: str = "PutBlob", kind: str = "Microsoft.Storage.BlobCreated") -> dict[str, Any]:
    return {
        "topic": "/subscriptions/s/storageAccounts/shop",
        "subject": "/blobServices/default/containers/landing/blobs/a b/1.json",
        "eventType": kind,
        "eventTime": "2026-11-22T06:00:00Z",
        "id": "1",
        "data": {
            "api": api,
            "eTag": "0x8D",
            "contentLength": 12,
            "url": "https://shop.blob.core.windows.net/landing/a%20b/1.json",
        },
    }


BLOB = {
    "uri": "abfss://landing@shop.dfs.core.windows.net/a b/1.json",
    "bucket": "landing",
    "key": "a b/1.json",
    "size": 12,
    "etag": "0x8D",
    "event_time": "2026-11-22T06:00:00Z",
}


def test_event_grid_comes_one_by_one_in_lists_and_as_cloudevents() -> None:
    assert read_eventgrid(message(blob())) == [BLOB]
    assert read_eventgrid(message([blob(), blob("FlushWithClose")])) == [BLOB, BLOB]
    event = {**blob(), "type": "Microsoft.Storage.BlobCreated", "time": BLOB["event_time"]}
    del event["eventType"], event["eventTime"], event["subject"]
    assert read_eventgrid(message(event)) == [BLOB]


def test_a_file_that_is_renamed_appears_under_its_new_name() -> None:
    """Programs such as Spark's committers write a file elsewhere, and then rename it. Such files were missed."""
    event = blob(kind="Microsoft.Storage.BlobRenamed")
    event["data"] = {
        "api": "RenameFile",
        "destinationUrl": "https://shop.dfs.core.windows.net/landing/a%20b/1.json",
        "sourceUrl": "https://shop.dfs.core.windows.net/landing/_temporary/1.json",
    }
    assert read_eventgrid(message(event)) == [{**BLOB, "size": None, "etag": None}]


def test_an_account_with_a_zone_of_its_own_keeps_it_in_the_uri() -> None:
    event = blob()
    event["data"]["url"] = "https://shop.z12.blob.storage.azure.net/landing/a%20b/1.json"
    (found,) = read_eventgrid(message(event))
    assert found["uri"] == "abfss://landing@shop.z12.dfs.storage.azure.net/a b/1.json"


def test_an_empty_object_that_stands_for_a_folder_does_not_fire() -> None:
    """Spark would read the whole folder again."""
    records = [s3_record("in/", size=0), s3_record("in/x", size=0), s3_record("odd/", size=3)]
    assert [one["key"] for one in read_s3(message({"Records": records}))] == ["in/x", "odd/"]
    folder = {**GCS, "objectId": "in/", "eventType": "OBJECT_FINALIZE", "payloadFormat": "NONE"}
    assert read_gcs(BrokerMessage(b"", attributes=folder)) == []
    event = blob()
    event["subject"] = "/blobServices/default/containers/landing/blobs/in/"
    event["data"]["contentLength"] = 0
    assert read_eventgrid(message(event)) == []


def test_a_cloudevent_of_event_grid_may_have_its_attributes_in_the_messages() -> None:
    event = blob()
    attributes = {
        "cloudEvents:id": event["id"],
        "cloudEvents:source": event["topic"],
        "cloudEvents:specversion": "1.0",
        "cloudEvents:type": event["eventType"],
        "cloudEvents:subject": event["subject"],
        "cloudEvents:time": event["eventTime"],
    }
    assert read_eventgrid(message(event["data"], **attributes)) == [BLOB]


def test_a_blob_that_is_created_empty_deleted_or_only_announced_does_not_fire() -> None:
    others = [
        blob("CreateFile"),
        blob("SftpCreate"),
        blob(kind="Microsoft.Storage.BlobDeleted"),
        {"eventType": "Microsoft.EventGrid.SubscriptionValidationEvent", "data": {}},
    ]
    assert read_eventgrid(message(others)) == []


@pytest.mark.parametrize("read", [read_s3, read_gcs, read_eventgrid])
@pytest.mark.parametrize("value", [{}, "text", None, {"Records": [{}]}, {"Records": 3}, [3]])
def test_what_is_no_notification_is_refused_and_not_passed_over(read: Any, value: Any) -> None:
    with pytest.raises(ValueError, match=r"no |CloudEvent"):
        read(message(value))


@pytest.mark.parametrize(("bucket", "key"), [("landing", None), (None, "a"), ("landing", 7)])
def test_a_notification_that_names_no_object_is_refused(bucket: Any, key: Any) -> None:
    detail = {"bucket": {"name": bucket}, "object": {"key": key}}
    event = {"source": "aws.s3", "detail-type": "Object Created", "detail": detail}
    with pytest.raises(ValueError, match="bucket or key is missing"):
        read_s3(message(event))
    attributes = {f"ce-{name}": "1" for name in ("id", "source", "specversion")}
    attributes["ce-type"] = "google.cloud.storage.object.v1.finalized"
    with pytest.raises(ValueError, match="bucket or key is missing"):
        read_gcs(message({"bucket": bucket, "name": key}, **attributes))


def test_what_a_topic_has_wrapped_and_is_too_deep_to_read_is_refused() -> None:
    """An earlier version raised `RecursionError`: the watcher failed, and the message came again."""
    with pytest.raises(ValueError, match="depth limit"):
        read_s3(message({"Type": "Notification", "Message": "[" * 100_000}))


def test_an_empty_batch_holds_nothing() -> None:
    assert read_eventgrid(message([])) == read_gcs(message([])) == []


def test_by_default_the_event_has_the_objects_fields() -> None:
    for name in ("s3", "gcs", "eventgrid"):
        decoding = find_decoding(name)
        assert decoding.several
        assert decoding.fields == FIELDS
    with pytest.raises(DagError, match="eventgrid"):
        find_decoding("S3")
