"""Kafka: a run for each day that has new orders, and a run for each refund. Two watchers share one consumer.

To try it:

    kafka-topics.sh --bootstrap-server localhost:9092 --create --topic orders
    echo '{"id": 7, "day": "2026-11-22", "amount": 1500}' |
        kafka-console-producer.sh --bootstrap-server localhost:9092 --topic orders
"""

from triggerer import DAG, Asset, AssetWatcher, task
from triggerer.timetables import PartitionedAssetTimetable
from watchers.kafka import KafkaEventTrigger

orders = Asset(
    "kafka://broker/orders",
    name="orders",
    watchers=[
        AssetWatcher(
            "positive",
            KafkaEventTrigger(
                "orders",
                match={"amount": {"gt": 0}},
                extra={"id": "id", "amount": "amount", "sent_by": "@headers.sender"},
                partition_key="day",
            ),
            guarantee="effectively_once",
        )
    ],
)
refunds = Asset(
    "x-orders://refunds",
    name="refunds",
    watchers=[AssetWatcher("negative", KafkaEventTrigger("orders", match={"amount": {"lt": 0}}))],
)

with DAG("orders_of_a_day", schedule=PartitionedAssetTimetable(assets=orders)):

    @task
    def add_up(dag_run, triggering_asset_events, log):
        amounts = [event.extra["amount"] for event in triggering_asset_events[orders]]
        log.info("%s: %s orders of %s", dag_run.partition_key, len(amounts), sum(amounts))

    add_up()

with DAG("refund", schedule=refunds, events_per_run=1):

    @task(retries=3)
    def pay_back(triggering_asset_events, log):
        (event,) = triggering_asset_events[refunds]
        log.info("order %s, at offset %s", event.extra["value"]["id"], event.extra["offset"])

    pay_back()
