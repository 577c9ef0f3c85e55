"""Compares `kafka_ranges(...).read` with Spark's own source for Kafka.

Run with `python -m tests.benchmarks.spark.kafka_ranges --messages 2000000 --rounds 3`.

The topic has four partitions, and Spark runs in local mode. First a watcher of ranges creates the events. Then each
round reads all messages in both ways, counts them, and sums the sizes of their values.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any, Final

import anyio
import psutil
from confluent_kafka import Producer

from tests.benchmarks.report import Figures, Report, Row, surroundings
from tests.services.brokers.kafka import open_kafka
from tests.services.clusters.spark_jars import find_spark_jars
from triggerer import kafka_ranges
from triggerer.testing import StreamHarness
from watchers.kafka import KafkaRangeTrigger

_PARTITIONS: Final = 4
_TOPIC: Final = "bench"
_QUERY: Final = ("count(*) AS n", "sum(length(value)) AS bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--max-offsets", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    report = Report(None)
    report.say(f"{surroundings()}")
    with open_kafka(heap="512m") as server:
        server.create_topic(_TOPIC, _PARTITIONS)
        _write(server.bootstrap_servers, arguments.messages)
        os.environ["TRIGGERER__CONNECTIONS__KAFKA__BOOTSTRAP_SERVERS"] = server.bootstrap_servers
        events, seconds = anyio.run(_watch, arguments.messages, arguments.max_offsets)
        report.say(
            f"{len(events)} events of ranges in {seconds:.2f} s after the start of the watcher"
        )
        rows = _read(server.bootstrap_servers, events, arguments.rounds)
    own, ours = (
        statistics.median(row[way] for row in rows) for way in ("Spark's own/s", "ranges/s")
    )
    title = f"Ranges of {arguments.messages:,} messages beside Spark's own reading, messages/s"
    cpu_own, cpu_ours = (
        statistics.median(row[f"{way} CPU s"] for row in rows) for way in ("Spark's own", "ranges")
    )
    note = (
        f"medians: {own:,.0f} and {ours:,.0f}/s, ratio {ours / own:.2f}; aim: 0.9. "
        f"Processor time {cpu_own:.2f} and {cpu_ours:.2f} s, ratio {cpu_ours / cpu_own:.2f}"
    )
    report.show(Figures("kafka-ranges", title, tuple(rows), note))


def _write(servers: str, count: int) -> None:
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "linger.ms": 20,
            "compression.type": "lz4",
            "queue.buffering.max.messages": 200_000,
        }
    )
    for number in range(count):
        value = b'{"id": %d, "amount": %d.5, "carrier": "UA", "origin": "EWR", "dest": "IAH", "note": "............"}'
        while True:
            try:
                producer.produce(_TOPIC, value % (number, number), partition=number % _PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()


async def _watch(messages: int, max_offsets: int) -> tuple[list[Any], float]:
    """Return the events that a watcher makes of all messages, and the seconds since its start."""
    began = time.monotonic()
    async with StreamHarness() as streams:
        view = await streams.add(KafkaRangeTrigger(_TOPIC, interval=0.5, max_offsets=max_offsets))
        while sum(one.payload["to"] - one.payload["from"] for one in view.events) < messages:
            if view.error is not None:
                raise view.error
            await anyio.sleep(0.01)
        seconds = time.monotonic() - began
    return [_Event(one.payload) for one in view.events], seconds


class _Event:
    def __init__(self, extra: dict[str, Any]) -> None:
        self.extra = extra


def _read(servers: str, events: list[Any], rounds: int) -> list[Row]:
    from pyspark.sql import SparkSession

    jars = ",".join(map(str, find_spark_jars().of("kafka")))
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", jars)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "1g")
        .getOrCreate()
    )
    try:

        def own() -> Any:
            reader = spark.read.format("kafka").option("kafka.bootstrap.servers", servers)
            return reader.option("subscribe", _TOPIC).load()

        def by_ranges() -> Any:
            return kafka_ranges(events).read(spark, bootstrap_servers=servers)

        # The first use of each way loads classes, so it does not count.
        _time(own)
        _time(by_ranges)
        rows = []
        for number in range(rounds):
            ways = {"Spark's own": own, "ranges": by_ranges}
            order = list(ways) if number % 2 == 0 else [*reversed(ways)]
            measured = {way: _time(ways[way]) for way in order}
            found = {way: measured[way] for way in ways}
            rows.append({"round": number + 1, **_figures(found), "load": psutil.getloadavg()[0]})
        return rows
    finally:
        spark.stop()


def _figures(found: dict[str, tuple[float, float]]) -> Row:
    """Return the rates, and the processor time of this process and Spark's JVM.

    Other programs on the machine change the rates, but hardly the processor time.
    """
    rates = {f"{way}/s": rate for way, (rate, _) in found.items()}
    return rates | {f"{way} CPU s": cpu for way, (_, cpu) in found.items()}


def _time(make: Callable[[], Any]) -> tuple[float, float]:
    """Return messages per second, and the processor time in seconds."""
    began, cpu = time.monotonic(), _cpu_s()
    row = make().selectExpr(*_QUERY).first()
    return round(row.n / (time.monotonic() - began)), round(_cpu_s() - cpu, 2)


def _cpu_s() -> float:
    this = psutil.Process()
    spark = [one for one in this.children() if "SparkSubmit" in " ".join(one.cmdline())]
    return sum(sum(one.cpu_times()[:2]) for one in (this, *spark))


if __name__ == "__main__":
    main()
