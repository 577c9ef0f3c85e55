"""Counts the demo's messages at the broker, in the store and in the Parquet files, for comparison."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.demo.checks import Check, asset_checks
from triggerer.demo.data import FLIGHTS, WEATHER, Dataset
from triggerer.demo.progress import JOIN

GROUPS = {FLIGHTS: "triggerer-demo-flights", WEATHER: "triggerer-demo-weather"}
ASSETS = {FLIGHTS: "flights", WEATHER: "weather"}


def committed_offsets(bootstrap_servers: str, topic: str, partitions: int) -> int:
    """Return the sum of the offsets that the topic's consumer group has committed in all partitions. Blocks."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": GROUPS[topic],
            "enable.auto.commit": False,
            "log_level": 3,
        }
    )
    try:
        asked = [TopicPartition(topic, number) for number in range(partitions)]
        # An offset of -1001 means that nothing is committed: the partition has no messages.
        return sum(max(0, answer.offset) for answer in consumer.committed(asked, timeout=10))
    finally:
        consumer.close()


async def store_checks(session: AsyncSession, dataset: Dataset) -> list[Check]:
    """Count the events of both assets, and how many of them are in runs."""
    checks = []
    for topic, expected in _expected(dataset).items():
        checks += await asset_checks(session, ASSETS[topic], dag_id=JOIN, expected=expected)
    return checks


def parquet_checks(results: Path, dataset: Dataset) -> list[Check]:
    """Count rows and distinct rows. Uses pyarrow, because Spark wrote the files. Blocks."""
    checks = []
    for topic, expected in _expected(dataset).items():
        name = ASSETS[topic]
        rows, distinct = _rows(results / name, ["id"])
        checks += [
            Check("rows in Parquet", name, expected, rows),
            Check("  distinct rows", name, expected, distinct),
        ]
    rows, distinct = _rows(results / "delays", ["id", "temp", "wind_speed", "precip", "visib"])
    checks.append(Check("rows joined (pandas: all at once)", "delays", dataset.joined, rows))
    return checks


def _rows(folder: Path, columns: Sequence[str]) -> tuple[int, int]:
    from pyarrow import dataset

    table: Any = dataset.dataset(str(folder), format="parquet").to_table(columns=list(columns))
    return table.num_rows, table.group_by(list(columns)).aggregate([]).num_rows


def _expected(dataset: Dataset) -> dict[str, int]:
    return {FLIGHTS: dataset.flights, WEATHER: dataset.weather}
