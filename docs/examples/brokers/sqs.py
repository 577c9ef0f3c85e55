"""SQS: JSON files that land in a bucket of S3 become Parquet, at most one run an hour.

The bucket sends notifications to the queue `landing`: directly, through SNS or through EventBridge. To try the watcher
without a bucket, send a notification yourself (the run will find no file):

    aws --endpoint-url http://localhost:9324 sqs create-queue --queue-name landing
    aws --endpoint-url http://localhost:9324 sqs send-message --queue-url http://localhost:9324/000000000000/landing \
        --message-body '{"Records": [{"eventName": "ObjectCreated:Put", "eventTime": "2026-11-22T06:00:00Z", "s3":
            {"bucket": {"name": "landing"}, "object": {"key": "in/a+b.json", "size": 12, "eTag": "x"}}}]}'
"""

from datetime import timedelta

from triggerer import DAG, Asset, AssetWatcher, task
from watchers.sqs import SqsEventTrigger

arrived = Asset(
    "s3://landing/in",
    name="arrived_in_s3",
    watchers=[
        AssetWatcher(
            "files",
            SqsEventTrigger(
                "landing",
                decode="s3",
                match={"key": {"glob": "in/**/*.json"}, "size": {"gt": 0}},
            ),
            guarantee="effectively_once",
        )
    ],
)
loaded = Asset("s3://lake/events", name="loaded_from_s3")

with DAG("load_from_s3", schedule=arrived, min_run_gap=timedelta(hours=1), max_active_runs=1):

    @task(outlets=[loaded])
    def load(spark, run_id, triggering_asset_events, outlet_events):
        uris = triggering_asset_events[arrived].uris()
        # Each run has a folder of its own, so a run that is repeated overwrites what it wrote before.
        spark.read.json(uris).write.mode("overwrite").parquet(f"s3://lake/events/run={run_id}")
        outlet_events[loaded].extra = {"files": len(uris)}

    load()
