"""Latency at a steady rate: from a message to its committed event, its queued run, and the advance at the broker.

This process sends the messages with aiokafka (linger 0), without waiting for earlier messages (an open loop). A latency
begins when the client gets the message. `stamped_service` records when it ends. Each run ends immediately.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import anyio

from tests.acceptance.records import Records
from tests.benchmarks.dags import that_does_nothing
from tests.benchmarks.load import Paced, publish_paced
from tests.benchmarks.parts import measure_latency
from tests.benchmarks.report import Figures, Row, percentile
from tests.benchmarks.scene import Scene, Store

# At one message a second, 40 seconds give only 40 figures, but a longer phase would make the benchmark too slow.
_SECONDS: Final = {1: 40, 10: 30, 100: 30, 1_000: 30}
_ALONE_SECONDS: Final = {1: 20, 10: 15, 100: 15, 1_000: 10}
_QUICK_SECONDS: Final = {1: 3, 10: 3, 100: 3, 1_000: 2}
_WARM_UP: Final = 50
_NOTE: Final = (
    "ms from the hand-over to the Kafka client; aim: queued p50 < 10, p99 < 50 at 100/s. "
    "CPU: the service and its child processes, in per cent of all cores."
)


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of the benchmark, with messages at one rate. `cpu_share` is in cores; `runs` counts the phase's runs."""

    rate: int
    paced: Paced
    cpu_share: float
    runs: int


def measure(scene: Scene) -> Figures:
    alone = {rate: _kafka_alone(scene, rate) for rate in _SECONDS}
    rows = [row for store in scene.stores for row in _measure(scene, store, alone)]
    title = "Latency: one watcher, one DAG whose runs end at once"
    return Figures("latency", title, tuple(rows), _NOTE)


def _kafka_alone(scene: Scene, rate: int) -> list[float]:
    seconds = (_QUICK_SECONDS if scene.quick else _ALONE_SECONDS)[rate]

    async def measure() -> list[float]:
        servers, topic = scene.kafka.bootstrap_servers, scene.new_topic()
        return await measure_latency(servers, topic, rate=rate, seconds=seconds)

    return anyio.run(measure, backend_options={"use_uvloop": True})


def _measure(scene: Scene, store: Store, alone: Mapping[int, list[float]]) -> Iterable[Row]:
    topic = scene.new_topic()
    with scene.service(that_does_nothing(topic, f"{topic}-group"), store) as service:
        service.start("events")
        service.wait_for_watchers(1)
        sent = 0
        phases: list[Phase] = []
        warm_up = publish_at(scene, topic, rate=50, seconds=_WARM_UP / 50, first=0)
        sent += len(warm_up.messages)
        runs = service.wait_until_done(sent, within_s=120)
        for rate, seconds in (_QUICK_SECONDS if scene.quick else _SECONDS).items():
            cpu, began = service.cpu_seconds(), time.monotonic()
            paced = publish_at(scene, topic, rate=rate, seconds=seconds, first=sent)
            # Measure only while messages are sent. The service may still have work to finish afterwards.
            share = (service.cpu_seconds() - cpu) / (time.monotonic() - began)
            sent += len(paced.messages)
            runs, before = service.wait_until_done(sent, within_s=120), runs
            phases.append(Phase(rate, paced, share, runs - before))
            scene.report.say(
                f"{store}: {rate}/s sent in {paced.seconds:.1f} s, generator late by at most "
                f"{paced.latest_s * 1000:.0f} ms"
            )
        held_by = runs_of_events(service.records)
        stamps = service.stop()
    assert scene.kafka.committed_offsets(f"{topic}-group", topic) == scene.kafka.end_offsets(topic)
    return [row_of(store, phase, stamps, held_by, alone[phase.rate]) for phase in phases]


def publish_at(scene: Scene, topic: str, *, rate: int, seconds: float, first: int) -> Paced:
    """Publish at a steady rate, with numbers from `first` on."""

    async def publish() -> Paced:
        servers = scene.kafka.bootstrap_servers
        return await publish_paced(servers, topic, rate=rate, seconds=seconds, first=first)

    return anyio.run(publish, backend_options={"use_uvloop": True})


def runs_of_events(records: Records) -> dict[tuple[int, int], int]:
    """Return by partition and offset the primary key of the run that has the event."""
    found: dict[tuple[int, int], int] = {}
    for key, run_pk in records.rows(
        "SELECT e.idempotency_key, q.run_pk FROM asset_event e"
        " JOIN queued_asset_event q ON q.asset_event_id = e.id"
    ):
        _, partition, offset = key.rsplit("/", 2)
        found[int(partition), int(offset)] = run_pk
    return found


def row_of(
    store: Store,
    phase: Phase,
    stamps: Mapping[str, Any],
    held_by: Mapping[tuple[int, int], int],
    alone: Sequence[float],
) -> Row:
    """The figures of one phase.

    Args:
        stamps: The instants that the service recorded.
        held_by: The result of `runs_of_events`.
        alone: The latencies of a bare consumer, in ms, sorted.
    """
    row: Row = {"store": store, "messages/s": phase.rate, "messages": len(phase.paced.messages)}
    row |= {f"Kafka alone\np{percent}": percentile(alone, percent) for percent in (50, 99)}
    for name, took in times_of(phase.paced, stamps, held_by).items():
        row |= {f"{name}\np{percent}": percentile(took, percent) for percent in (50, 95, 99)}
    row["runs"] = phase.runs
    row["CPU %"] = phase.cpu_share * 100 / (os.cpu_count() or 1)
    row["generator\nlate ms"] = phase.paced.latest_s * 1000
    return row


def times_of(
    paced: Paced, stamps: Mapping[str, Any], held_by: Mapping[tuple[int, int], int] | None
) -> dict[str, list[float]]:
    """Return sorted latencies in ms: until the event's commit, until the queued run, and until the advance.

    Args:
        held_by: The result of `runs_of_events`. None: there are no runs.
    """
    committed = {(partition, offset): at for partition, offset, at in stamps["committed"]}
    advances = _Advances(stamps["advanced"])
    places = [((sent.partition, sent.offset), sent.at) for sent in paced.messages]
    ends = {"committed": [committed[place] for place, _ in places]}
    if held_by is not None:
        ends["queued"] = [stamps["queued"][held_by[place]] for place, _ in places]
    ends["advanced"] = [advances.of(*place) for place, _ in places]
    return {
        name: sorted((end - at) / 1e6 for end, (_, at) in zip(these, places, strict=True))
        for name, these in ends.items()
    }


class _Advances:
    """Finds the instant at which an advance of the partition first reached or passed an offset."""

    def __init__(self, stamps: Sequence[Sequence[int]]) -> None:
        self._lanes: dict[int, tuple[list[int], list[int]]] = {}
        for partition, offset, at in stamps:
            offsets, instants = self._lanes.setdefault(partition, ([], []))
            offsets.append(offset)
            instants.append(at)
        for partition, (offsets, _) in self._lanes.items():
            assert offsets == sorted(offsets), f"partition {partition} went back"

    def of(self, partition: int, offset: int) -> int:
        offsets, instants = self._lanes[partition]
        return instants[bisect_left(offsets, offset)]
