"""The cost of catching up: its rate, its effect on live delivery, and a thousand watchers that catch up.

    python -m tests.benchmarks.falling_behind.catch_up [kafka|rate|head|many]
        [--messages 1000000] [--rates 100,1000] [--watchers 1000]

The runtime works alone in one process, with a store that stores no event. All parts except *kafka* read a log in
memory. `sick_watchers` in this folder measures a whole service.

- *kafka*: a watcher reads a whole topic of Apache Kafka live, and derives an event from one message in ten. Then a
  watcher reads the same topic as its backlog, while no message arrives. Aim: 0.7 of the live rate.
- *rate*: the comparison of *kafka*, on the log in memory. It is repeated with watchers that derive an event from every
  message.
- *head*: the latency of one watcher, to which messages arrive at a steady rate: first alone, then beside a watcher that
  catches up all the time. A latency begins when the message is due, and ends when its event is durable. Aim: a p99 at
  most 1.5 times the p99 alone.
- *many*: for some seconds, `--watchers` watchers catch up beside a live watcher. Each has a backlog of an hour in all
  lanes.
"""

from __future__ import annotations

import argparse
import gc
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import anyio
import psutil
import structlog

from tests.benchmarks.falling_behind.log_in_memory import LANES, Log, Store, spec
from tests.benchmarks.load import publish_backlog
from tests.benchmarks.report import Figures, Report, Row, percentile, surroundings
from tests.benchmarks.scene import Scene, open_scene
from triggerer.abc import install_connections
from triggerer.domain.events import EventSource, Fence, WatcherRef
from triggerer.domain.watchers.lane_positions import LanePosition, encode_lane
from triggerer.service.running import GC_THRESHOLDS
from triggerer.streams import Manager, RuntimeContext, TriggerSpec
from watchers.kafka import KafkaEventTrigger

CASES: Final = ("kafka", "rate", "head", "many")
_LIVE: Final = 1
_ENDLESS: Final = 8 * 10**9
_HOUR_S: Final = 3_600


def main() -> None:
    arguments = _arguments()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    # Set the garbage collector as in the service.
    gc.set_threshold(*GC_THRESHOLDS)
    gc.freeze()
    report = Report(arguments.json)
    report.say(f"{surroundings()}")
    if "kafka" in arguments.which:
        with open_scene(report, (), quick=False) as scene:
            rows = list(_compare_on_kafka(scene, arguments.messages, arguments.rounds))
        title = f"Catching up with {arguments.messages:,} messages of Apache Kafka"
        report.show(Figures("catch-up-kafka", title, tuple(rows), "aim: 0.7 of the live path"))
    if "rate" in arguments.which:
        rows = [
            row
            for one_in in (10, 1)
            for row in _compare_rates(arguments.messages, one_in, arguments.rounds)
        ]
        title = f"Catching up with {arguments.messages:,} messages in {LANES} lanes"
        note = "aim: 0.7 of the live path, in processor time, because other programs use the machine too"
        report.show(Figures("catch-up-rate", title, tuple(rows), note))
    if "head" in arguments.which:
        rates = [float(rate) for rate in arguments.rates.split(",")]
        rows = [_compare_heads(rate, arguments.seconds) for rate in rates]
        note = "ms from the instant a message is due until its event is durable; aim: p99 ratio 1.5"
        report.show(
            Figures(
                "catch-up-head", "Live delivery beside a watcher that is behind", tuple(rows), note
            )
        )
    if "many" in arguments.which:
        row = _measure_many(arguments.watchers, arguments.hour_rate, arguments.seconds)
        note = "consumers: readings of the log that are open at once; each would be a consumer at the broker"
        report.show(
            Figures("catch-up-many", "Many watchers that are behind by an hour", (row,), note)
        )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("which", nargs="*", default=["all"], metavar="|".join(CASES))
    parser.add_argument(
        "--messages", type=int, default=1_000_000, help="size of the backlog (kafka, rate)"
    )
    parser.add_argument(
        "--rounds", type=int, default=1, help="rounds of which the best counts (kafka, rate)"
    )
    parser.add_argument("--rates", default="100,300,1000,3000,10000", help="messages/s (head)")
    parser.add_argument(
        "--seconds", type=float, default=30, help="length of each phase (head, many)"
    )
    parser.add_argument(
        "--watchers", type=int, default=1_000, help="number of watchers that are behind (many)"
    )
    parser.add_argument(
        "--hour-rate",
        type=float,
        default=10,
        help="messages/s of live delivery and of the backlog's hour (many)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="append figures as JSON lines")
    arguments = parser.parse_args()
    if "all" in arguments.which:
        arguments.which = list(CASES)
    if unknown := set(arguments.which) - set(CASES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    return arguments


def _run(function: Callable[..., Any], *arguments: Any) -> Any:
    return anyio.run(function, *arguments, backend_options={"use_uvloop": True})


# On Kafka


def _compare_on_kafka(scene: Scene, messages: int, rounds: int) -> Sequence[Row]:
    topic, servers = scene.new_topic(), scene.kafka.bootstrap_servers
    anyio.run(publish_backlog, servers, topic, messages)
    install_connections(lambda _: {"bootstrap_servers": servers})
    live, behind = [], []
    for _ in range(rounds):
        live.append(_run(_take_from_kafka, topic, messages, False))
        behind.append(_run(_take_from_kafka, topic, messages, True))
    return list(_rows_of_rates("one in 10", messages, live, behind))


async def _take_from_kafka(topic: str, messages: int, is_behind: bool) -> _Took:
    """Return how long one watcher takes to read all messages of a Kafka topic, live or as its backlog.

    The time begins at the first stored event, so that connecting does not count.
    """
    done, first = anyio.Event(), list[tuple[float, float]]()

    def note(_: int, __: Any) -> None:
        if not first:
            first.append((time.perf_counter(), time.process_time()))
        if store.events == messages // 10:
            done.set()

    store = Store(note)
    kwargs: dict[str, Any] = {
        "topics": [topic],
        "group_id": f"catch-up-{uuid4()}",
        "start": "latest" if is_behind else "earliest",
        "match": {"w": {"in": [0, 1]}},
    }
    positions: list[LanePosition] = []
    if is_behind:
        producer = KafkaEventTrigger.create_shared_stream_producer(kwargs)
        positions = [
            LanePosition(_LIVE, str(encode_lane(lane)), position, datetime.now(UTC))
            for lane, position in (await producer.find_positions(None)).items()
        ]
    one = TriggerSpec(
        name="watcher",
        make=partial(KafkaEventTrigger, **kwargs),
        kwargs=kwargs,
        source=EventSource((WatcherRef(_LIVE, _LIVE),), Fence("stream", "benchmark", 1)),
        positions=tuple(positions),
    )
    gc.collect()
    async with Manager(RuntimeContext(store, store)) as manager:
        manager.add([one])
        with anyio.fail_after(600):
            await done.wait()
        return _Took(time.perf_counter() - first[0][0], time.process_time() - first[0][1])


# The rate


@dataclass(frozen=True, slots=True)
class _Took:
    seconds: float
    cpu_s: float


def _compare_rates(messages: int, one_in: int, rounds: int) -> Sequence[Row]:
    live, behind = [], []
    for _ in range(rounds):
        live.append(_run(_take, messages, one_in, False))
        behind.append(_run(_take, messages, one_in, True))
    return _rows_of_rates(f"one in {one_in}", messages, live, behind)


def _rows_of_rates(
    derives: str, messages: int, live: Sequence[_Took], behind: Sequence[_Took]
) -> Sequence[Row]:
    best = min(took.cpu_s for took in live)
    rows: list[Row] = []
    for path, tooks in (("live", live), ("catching up", behind)):
        took = min(tooks, key=lambda one: one.cpu_s)
        rows.append(
            {
                "derives": derives,
                "path": path,
                "messages/s": messages / took.seconds,
                "CPU µs/message": took.cpu_s * 1e6 / messages,
                "of live, CPU": best / took.cpu_s,
                "of live": min(one.seconds for one in live) / took.seconds,
            }
        )
    return rows


async def _take(messages: int, one_in: int, is_behind: bool) -> _Took:
    """Have one watcher take all messages, live or as its backlog; return the time that it took."""
    log = Log(messages if is_behind else 0, messages)
    log.wanted = messages
    store = Store()
    gc.collect()
    began, cpu = time.perf_counter(), time.process_time()
    async with Manager(RuntimeContext(store, store)) as manager:
        manager.add([spec(_LIVE, one_in=one_in, behind_from=0 if is_behind else None)])
        with anyio.fail_after(600):
            await log.done.wait()
        return _Took(time.perf_counter() - began, time.process_time() - cpu)


# The head


def _compare_heads(rate: float, seconds: float) -> Row:
    alone = _run(_head, rate, seconds, False)
    beside = _run(_head, rate, seconds, True)
    return {
        "messages/s": rate,
        "alone p50": percentile(alone[0], 50),
        "alone p99": percentile(alone[0], 99),
        "beside p50": percentile(beside[0], 50),
        "beside p99": percentile(beside[0], 99),
        "p99 ratio": percentile(beside[0], 99) / percentile(alone[0], 99),
        "caught up messages/s": beside[1] / seconds,
    }


async def _head(rate: float, seconds: float, has_laggard: bool) -> tuple[list[float], int]:
    """Return the sorted latencies of the live watcher in ms, and the number of messages that the laggard read.

    The laggard, if there is one, catches up in the same lanes meanwhile.
    """
    log = Log(_ENDLESS, _ENDLESS + round(rate * seconds), rate=rate)
    took: list[float] = []

    def note(watcher: int, number: Any) -> None:
        if watcher == _LIVE:
            took.append((time.perf_counter() - log.due(number)) * 1_000)
            if len(took) == log.end - log.first:
                log.done.set()

    specs = [spec(_LIVE, one_in=1)]
    if has_laggard:
        specs.append(spec(_LIVE + 1, one_in=10, behind_from=0))
    store = Store(note)
    gc.collect()
    async with Manager(RuntimeContext(store, store)) as manager:
        manager.add(specs)
        with anyio.fail_after(seconds * 3 + 60):
            await log.done.wait()
    return sorted(took), log.taken.get(_LIVE + 1, 0)


# Many


def _measure_many(watchers: int, hour_rate: float, seconds: float) -> Row:
    row: Row = _run(_many, watchers, hour_rate, seconds)
    return row


async def _many(watchers: int, hour_rate: float, seconds: float) -> Row:
    behind = round(hour_rate * _HOUR_S)
    log = Log(behind, _ENDLESS, rate=hour_rate)
    head: list[float] = []

    def note(watcher: int, number: Any) -> None:
        if watcher == _LIVE:
            head.append((time.perf_counter() - log.due(number)) * 1_000)

    store = Store(note)
    process = psutil.Process()
    gc.collect()
    before = process.memory_info().rss
    specs = [spec(_LIVE, one_in=1)]
    specs += [spec(_LIVE + 1 + number, one_in=10, behind_from=0) for number in range(watchers)]
    for one in specs:
        store.load(one.positions)
    async with Manager(RuntimeContext(store, store)) as manager:
        manager.add(specs)
        await anyio.sleep(seconds)
        gc.collect()
        rss = process.memory_info().rss
        given = sum(log.taken.values()) - log.taken.get(_LIVE, 0)
        return {
            "watchers": watchers,
            "lanes": LANES,
            "behind by": behind,
            "seconds": seconds,
            "rows": len(store.rows),
            "RSS MiB": rss / 2**20,
            "of it theirs": (rss - before) / 2**20,
            "most consumers": log.most_readers,
            "readings": log.readings,
            "read messages/s": log.read_beside / seconds,
            "given messages/s": given / seconds,
            "head p50 ms": percentile(sorted(head), 50),
            "head p99 ms": percentile(sorted(head), 99),
        }


if __name__ == "__main__":
    main()
