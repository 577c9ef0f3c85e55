"""Metrics are counted, written for Prometheus, and bounded in the number of their series."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.store.streams.test_reports import LIVE
from triggerer.domain.live_state import LaneLive, Pause, StreamLive
from triggerer.observability.metrics import table
from triggerer.observability.metrics.exposition import GATHERING, Gathering, Sample
from triggerer.observability.metrics.instruments import Counter, Histogram, Metric
from triggerer.service.metrics import MOST_LANES, MOST_STREAMS, StreamMetrics

MOST_SERIES = 3_000
REASONS = ("stream_full", "lane_full", "slow_watcher", "parked_bound", "standing", "stopping")


def values(gathering: Gathering, name: str) -> dict[tuple[tuple[str, str], ...], float]:
    """Return the samples of a metric by their labels."""
    text = gathering.text().decode()
    return {
        tuple(sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    }


def test_a_counter_adds_up_and_sums_its_labels_beyond_the_bound() -> None:
    counter = Counter(Metric("x_total", "counter", "", ("a", "b")), most=2)
    counter.add(2, "1", "1")
    counter.add(1, "2", "2")
    counter.add(5, "3", "3")
    counter.add(1, "4", "4")
    counter.add(1, "1", "1")
    assert counter.values() == {("1", "1"): 3, ("2", "2"): 1, ("other", "3"): 5, ("other", "4"): 1}
    assert Counter(Metric("y_total", "counter", "")).values() == {(): 0}
    assert Counter(Metric("y_total", "counter", "", ("a",))).values() == {}


def test_dags_beyond_the_bound_are_added_up_by_state() -> None:
    for number in range(1_000):
        for state in ("success", "failed", "cancelled"):
            table.DAG_RUNS.add(1, f"d{number}", state)
    found = table.DAG_RUNS.values()
    table.DAG_RUNS.clear()
    assert len(found) == 1_503
    assert found["d499", "failed"] == 1
    assert found["other", "failed"] == 500


def test_a_histogram_counts_into_cumulative_buckets() -> None:
    histogram = Histogram(Metric("h", "histogram", "", ("op",)), (1.0, 2.0), most=1)
    for value in (0.5, 1.0, 1.5, 9.0):
        histogram.observe(value, "read")
    histogram.observe(1.0, "write")
    ((labels, series), (others, _)) = histogram.series()
    assert labels == ("read",)
    assert others == ("other",)
    assert series.read() == ([("1.0", 2.0), ("2.0", 3.0), ("+Inf", 4.0)], 12.0)


def test_values_that_are_read_at_a_scrape_come_and_go_with_their_part() -> None:
    gathering = Gathering()
    remove = gathering.add(lambda: [Sample(table.RUNS_ACTIVE, 7, ("queued",))])
    assert values(gathering, "triggerer_runs_active") == {(("state", "queued"),): 7}
    remove()
    assert values(gathering, "triggerer_runs_active") == {}
    assert gathering.scrapes == 2
    assert "process_resident_memory_bytes" in gathering.text().decode()


def stream(name: str, **changes: Any) -> StreamLive:
    return replace(LIVE, stream=name, stream_id=name, **changes)


def read(*streams: StreamLive) -> dict[tuple[str, tuple[str, ...]], float]:
    found = {}
    for metric, value, labels in StreamMetrics(lambda: streams).read():
        assert (metric.name, labels) not in found
        assert len(labels) == len(metric.labels)
        found[metric.name, labels] = value
    return found


def test_a_stream_shows_what_it_consumed_and_why_it_waits() -> None:
    found = read(stream("kafka orders", system="kafka"))
    assert found["triggerer_messages_consumed_total", ("kafka orders", "kafka")] == 7
    assert found["triggerer_messages_resolved_total", ("kafka orders", "acked")] == 3
    assert found["triggerer_messages_resolved_total", ("kafka orders", "rejected")] == 1
    assert found["triggerer_stream_paused", ("kafka orders", "lane_full")] == 1
    assert found["triggerer_lane_outstanding_messages", ("kafka orders", '"a"')] == 3
    assert ("triggerer_stream_lag_messages", ("kafka orders",)) in found
    unknown = read(stream("directory x", lag_messages=None, lag_seconds=None))
    assert ("triggerer_stream_lag_messages", ("directory x",)) not in unknown


def test_the_acked_messages_never_shrink_while_a_failed_one_is_on_its_way() -> None:
    streams = [stream("s", advanced=5, consumed=9, rejected=0)]
    metrics = StreamMetrics(lambda: streams)

    def acked() -> float:
        return next(
            one.value
            for one in metrics.read()
            if one.metric is table.MESSAGES_RESOLVED and one.labels[1] == "acked"
        )

    assert acked() == 5
    streams[0] = replace(streams[0], failed=1)
    assert acked() == 5
    streams[0] = replace(streams[0], advanced=8)
    assert acked() == 7
    # Another owner begins at zero.
    streams[0] = replace(streams[0], consumed=1, advanced=1, failed=0)
    assert acked() == 1


def test_streams_of_one_name_and_streams_beyond_the_bound_are_added_up() -> None:
    same = read(stream("a"), stream("a"))
    assert same["triggerer_messages_consumed_total", ("a", "memory")] == 14
    many = [stream(f"s{number:04}") for number in range(MOST_STREAMS + 10)]
    found = read(*many)
    assert found["triggerer_messages_consumed_total", ("other", "other")] == 70
    assert found["triggerer_stream_lag_seconds", ("other",)] == 1.5
    lane = "triggerer_lane_outstanding_messages", ("other", '"0"')
    lanes = [LaneLive('"0"', 5, 5, 1.0, "stands", is_full=True)]
    assert read(*[replace(one, lanes=lanes) for one in many])[lane] == 50


def test_10_000_watchers_on_1_000_busy_streams_stay_below_3_000_series() -> None:
    lanes = [LaneLive(f'"{n}"', 5, 5, 1.0, "stands", is_full=True) for n in range(MOST_LANES)]
    pauses = [Pause(reason, None) for reason in REASONS]
    streams = [
        stream(f"kafka topic-{number:04}", lanes=lanes, paused=pauses, triggers=10, behind=10)
        for number in range(1_000)
    ]
    metrics = StreamMetrics(lambda: streams)
    gathering = Gathering()
    gathering.add(metrics.read)
    labels = [f"kafka topic-{number:04}" for number in range(1_000)]
    for counter in table.COUNTERS:
        for label in labels:
            # The series of DAGs are off by default.
            if counter.metric.labels and counter.metric.labels not in (
                ("source",),
                ("dag", "state"),
            ):
                counter.add(0, *[label] * len(counter.metric.labels))
    for histogram in table.HISTOGRAMS:
        for label in labels:
            histogram.of(*[label] * len(histogram.metric.labels))
    # The scheduler adds at most 50 failing watchers, 50 that are behind, and some thirty more.
    text = gathering.text().decode()
    series = [line for line in text.splitlines() if line and not line.startswith("#")]
    try:
        assert MOST_STREAMS * 10 < len(series) < MOST_SERIES - 150
    finally:
        for counter in table.COUNTERS:
            counter.clear()
        for histogram in table.HISTOGRAMS:
            histogram.clear()


def test_every_metric_of_the_table_is_well_named() -> None:
    assert GATHERING.scrapes >= 0
    for name, metric in table.METRICS.items():
        assert name.startswith("triggerer_")
        assert metric.help.endswith(".")
        assert (metric.kind == "counter") == name.endswith("_total")
        assert "instance" not in metric.labels
        assert "run_id" not in metric.labels
