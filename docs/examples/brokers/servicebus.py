"""Service Bus: Event Grid reports each new blob of a storage account to the topic `storage`.

The topic needs a subscription `triggerer`. This command lets Event Grid report new blobs to the topic:

    az eventgrid event-subscription create --name landing --source-resource-id "$STORAGE_ACCOUNT_ID" \
        --included-event-types Microsoft.Storage.BlobCreated --endpoint-type servicebustopic --endpoint "$TOPIC_ID"

The events may have Event Grid's own schema, or be CloudEvents. A file in Data Lake Storage causes the asset event when
the file is closed.
"""

from triggerer import DAG, Asset, AssetWatcher, task
from watchers.servicebus import ServiceBusEventTrigger

scans = Asset(
    "abfss://scans@shop.dfs.core.windows.net/in",
    name="scans",
    watchers=[
        AssetWatcher(
            "blobs",
            ServiceBusEventTrigger(
                topic="storage",
                subscription="triggerer",
                decode="eventgrid",
                match={"bucket": "scans", "key": {"regex": r"\.(jpg|png)$"}},
                extra={"uri": "uri", "size": "size", "message_id": "@message_id"},
            ),
        )
    ],
)

with DAG("read_scans", schedule=scans, events_per_run=10, max_active_runs=4):

    @task(retries=2)
    def read(spark, triggering_asset_events, log):
        images = spark.read.format("binaryFile").load(triggering_asset_events[scans].uris())
        log.info("%s images", images.count())

    read()
