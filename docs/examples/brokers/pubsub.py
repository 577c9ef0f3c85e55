"""Pub/Sub: files that arrive in a bucket of Cloud Storage. `invoices/` is one asset, `orders/` another.

    gcloud storage buckets notifications create gs://landing --topic=landing --event-types=OBJECT_FINALIZE
    gcloud pubsub subscriptions create landing --topic=landing

The watchers of both assets share one reader of the subscription. To try them without a bucket, send a notification
yourself:

    gcloud pubsub topics publish landing --message='{"size": "12", "etag": "x"}' --attribute=eventType=OBJECT_FINALIZE,\
payloadFormat=JSON_API_V1,bucketId=landing,objectId=invoices/1.csv,eventTime=2026-11-22T06:00:00Z
"""

from triggerer import DAG, Asset, AssetWatcher, task
from watchers.pubsub import PubSubEventTrigger


def landing_in(folder):
    trigger = PubSubEventTrigger(
        "landing", decode="gcs", match={"key": {"prefix": f"{folder}/", "suffix": ".csv"}}
    )
    return Asset(
        f"gs://landing/{folder}",
        name=f"{folder}_in_gcs",
        watchers=[AssetWatcher("files", trigger)],
    )


invoices, orders = landing_in("invoices"), landing_in("orders")

# A run starts as soon as there is at least one invoice and at least one order.
with DAG("match_invoices", schedule=invoices & orders):

    @task
    def join(spark, triggering_asset_events):
        billed, ordered = (
            spark.read.option("header", True).csv(triggering_asset_events[asset].uris())
            for asset in (invoices, orders)
        )
        missing = ordered.join(billed, "order_id", "left_anti")
        missing.write.mode("overwrite").parquet("gs://lake/orders_without_invoice")

    join()
