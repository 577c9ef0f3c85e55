"""Reads notifications about objects that were written to S3, to Cloud Storage, or to Azure's Blob Storage.

Each `read_` function returns a list of the written objects, each as a mapping with the keys `FIELDS`. The list is empty
if the message reports something else: a deletion, a folder, or a test of the notifications.

`uri` is for Spark's connectors: `s3://…`, `gs://…`, or `abfss://container@account.dfs.core.windows.net/…`. For Blob
Storage, `bucket` is the container.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote, unquote_plus, urlsplit

import orjson

from triggerer.abc import BrokerMessage
from triggerer.pluginkit.cloudevents import binary_events, read_cloudevents
from triggerer.pluginkit.texts import text_of

FIELDS: Final = ("uri", "bucket", "key", "size", "etag", "event_time")

_Object = dict[str, Any]


def _object(
    uri: str, bucket: Any, key: Any, *, size: Any, etag: Any, event_time: str | None
) -> _Object:
    if not (isinstance(bucket, str) and isinstance(key, str)):
        raise ValueError("no notification of an object: bucket or key is missing")
    return {
        "uri": uri,
        "bucket": bucket,
        "key": key,
        "size": None if size is None or size == "" else int(size),
        "etag": None if etag is None else str(etag).strip('"'),
        "event_time": event_time,
    }


def _without_folders(found: Iterable[_Object]) -> list[_Object]:
    """Leave out the empty objects, such as "in/", that consoles and Hadoop's connectors write for a folder.

    Reading the URI of such an object would read the whole folder.
    """
    return [one for one in found if one["size"] or not one["key"].endswith("/")]


def read_s3(message: BrokerMessage) -> list[_Object]:
    """Read S3's event notifications, whether the bucket, an SNS topic or EventBridge sent them.

    Keys are form-encoded, except in events from EventBridge.

    Raises:
        ValueError: The message is no notification of S3.
    Source: "Event message structure" and "Using EventBridge" in the user guide of Amazon S3.
    """
    return _without_folders(_s3_objects(message.json()))


def _s3_objects(value: Any) -> Iterator[_Object]:
    try:
        if value.get("Type") == "Notification" and "Message" in value:
            yield from _s3_objects(orjson.loads(value["Message"]))
        elif "Records" in value:
            for record in value["Records"]:
                # "ObjectCreated:Put"; in older configurations "s3:ObjectCreated:Put".
                if record["eventName"].removeprefix("s3:").startswith("ObjectCreated:"):
                    yield _s3_record(record)
        elif value.get("source") == "aws.s3":
            if value["detail-type"] == "Object Created":
                detail = value["detail"]
                bucket, found = detail["bucket"]["name"], detail["object"]
                yield _s3_object(bucket, found["key"], found, value.get("time"))
        elif value.get("Event") != "s3:TestEvent":
            raise ValueError("no notification of S3")
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"no notification of S3: {error!r}") from error


def _s3_record(record: Mapping[str, Any]) -> _Object:
    found = record["s3"]["object"]
    return _s3_object(
        record["s3"]["bucket"]["name"], unquote_plus(found["key"]), found, record.get("eventTime")
    )


def _s3_object(bucket: str, key: str, found: Mapping[str, Any], time: str | None) -> _Object:
    etag = found.get("eTag") or found.get("etag")
    return _object(
        f"s3://{bucket}/{key}", bucket, key, size=found.get("size"), etag=etag, event_time=time
    )


def read_gcs(message: BrokerMessage) -> list[_Object]:
    """Read notifications of Cloud Storage, in its own format for Pub/Sub or as CloudEvents.

    Size and ETag are None if the notification's payload format is NONE.

    Raises:
        ValueError: The message is no notification of Cloud Storage.
    Source: "Pub/Sub notifications for Cloud Storage" in the documentation of Cloud Storage.
    """
    attributes = {name: text_of(value) for name, value in message.attributes.items()}
    kind = attributes.get("eventType")
    if kind is None:
        return _gcs_cloudevents(message)
    if kind != "OBJECT_FINALIZE":
        return []
    try:
        bucket, key = attributes["bucketId"], attributes["objectId"]
        described = attributes.get("payloadFormat") == "JSON_API_V1"
        found = message.json() if described and message.value else {}
        return _without_folders([_gcs_object(bucket, key, found, attributes.get("eventTime"))])
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"no notification of Cloud Storage: {error!r}") from error


def _gcs_cloudevents(message: BrokerMessage) -> list[_Object]:
    try:
        return _without_folders(
            _gcs_object(
                event["data"]["bucket"], event["data"]["name"], event["data"], event.get("time")
            )
            for event in read_cloudevents(message)
            if event["type"] == "google.cloud.storage.object.v1.finalized"
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"no notification of Cloud Storage: {error!r}") from error


def _gcs_object(bucket: Any, key: Any, found: Mapping[str, Any], time: str | None) -> _Object:
    return _object(
        f"gs://{bucket}/{key}",
        bucket,
        key,
        size=found.get("size"),
        etag=found.get("etag"),
        event_time=time or found.get("timeCreated"),
    )


_BLOB_CREATED: Final = "Microsoft.Storage.BlobCreated"
# Only a container with a hierarchical namespace can rename a file. Programs often write a file under a temporary name
# there, and rename the finished file. In other containers and buckets a rename is a copy, which creates an object.
_BLOB_RENAMED: Final = "Microsoft.Storage.BlobRenamed"
# These calls create an empty object. Another event (FlushWithClose, SftpCommit) says that the content is written.
_NOT_YET_WRITTEN: Final = frozenset({"CreateFile", "SftpCreate"})
_SUBJECT: Final = "/blobServices/default/containers/"


def read_eventgrid(message: BrokerMessage) -> list[_Object]:
    """Read one or several events of Blob Storage, in Event Grid's own schema or as CloudEvents (structured or binary).

    Raises:
        ValueError: The message is no event of Event Grid.
    Source: "Azure Blob Storage as an Event Grid source" in Event Grid's documentation.
    """
    events = binary_events(message)
    if events is None:
        value = message.json()
        events = value if isinstance(value, list) else [value]
    objects = []
    try:
        for event in events:
            kind = event.get("eventType") or event["type"]
            if kind == _BLOB_CREATED and event["data"].get("api") not in _NOT_YET_WRITTEN:
                objects.append(_blob(event, event["data"]["url"]))
            elif kind == _BLOB_RENAMED:
                # The event has no size and no ETag.
                objects.append(_blob(event, event["data"]["destinationUrl"]))
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"no event of Event Grid: {error!r}") from error
    return _without_folders(objects)


def _blob(event: Mapping[str, Any], location: str) -> _Object:
    data = event["data"]
    url = urlsplit(location)
    subject = event.get("subject") or ""
    if subject.startswith(_SUBJECT):
        # The subject has the plain name; in the URL it may be encoded.
        container, _, key = subject.removeprefix(_SUBJECT).partition("/blobs/")
    else:
        container, _, key = unquote(url.path).lstrip("/").partition("/")
    # "shop.blob.core.windows.net"; in a DNS zone "shop.z12.blob.storage.azure.net".
    host = (url.hostname or "").replace(".blob.", ".dfs.", 1)
    return _object(
        f"abfss://{container}@{host}/{key}",
        container,
        key,
        size=data.get("contentLength"),
        etag=data.get("eTag"),
        event_time=event.get("eventTime") or event.get("time"),
    )
