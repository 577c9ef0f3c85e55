"""Writes all metrics of this process in Prometheus' text format. Imports `prometheus_client` at the first scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from triggerer.observability.metrics.instruments import Metric
from triggerer.observability.metrics.table import COUNTERS, HISTOGRAMS

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as Family
    from prometheus_client.registry import CollectorRegistry

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Sample(NamedTuple):
    """The present value of one series."""

    metric: Metric
    value: float
    labels: tuple[str, ...] = ()


Reader = Callable[[], Iterable[Sample]]
"""Returns the present values of some metrics. The thread of a scrape calls the reader, so the reader must not wait, and
must change nothing.
"""


class Gathering:
    """The metrics of this process: its counters and histograms, and the values that readers return at a scrape."""

    def __init__(self) -> None:
        self._readers: dict[Reader, None] = {}
        self._lock = Lock()
        self._registry: CollectorRegistry | None = None
        self.scrapes = 0
        """How often the metrics were scraped."""

    def add(self, reader: Reader) -> Callable[[], None]:
        """Call `reader` at each scrape from now on. Return a function that removes the reader."""
        self._readers[reader] = None

        def remove() -> None:
            self._readers.pop(reader, None)

        return remove

    def text(self) -> bytes:
        """Return the text for one scrape: all metrics, including the metrics of the process and the interpreter."""
        from prometheus_client import exposition

        self.scrapes += 1
        with self._lock:
            if self._registry is None:
                self._registry = _registry(self)
        return exposition.generate_latest(self._registry)

    def collect(self) -> Iterator[Family]:
        """Yield each metric with its samples, as `prometheus_client` asks for them."""
        from prometheus_client import core

        for counter in COUNTERS:
            family = core.CounterMetricFamily(
                counter.metric.name, counter.metric.help, labels=counter.metric.labels
            )
            for labels, value in counter.values().items():
                family.add_metric(labels, value)
            yield family
        for histogram in HISTOGRAMS:
            of_histogram = core.HistogramMetricFamily(
                histogram.metric.name, histogram.metric.help, labels=histogram.metric.labels
            )
            for labels, distribution in histogram.series():
                buckets, total = distribution.read()
                of_histogram.add_metric(labels, buckets, total)
            yield of_histogram
        yield from self._read()

    def _read(self) -> Iterator[Family]:
        from prometheus_client import core

        families: dict[str, Any] = {}
        for reader in list(self._readers):
            for metric, value, labels in reader():
                family = families.get(metric.name)
                if family is None:
                    kind = (
                        core.CounterMetricFamily
                        if metric.kind == "counter"
                        else core.GaugeMetricFamily
                    )
                    family = families[metric.name] = kind(
                        metric.name, metric.help, labels=metric.labels
                    )
                family.add_metric(labels, value)
        yield from families.values()


def _registry(gathering: Gathering) -> CollectorRegistry:
    from prometheus_client import GCCollector, PlatformCollector, ProcessCollector
    from prometheus_client.registry import CollectorRegistry

    registry = CollectorRegistry(auto_describe=False)
    registry.register(gathering)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


GATHERING: Final = Gathering()
"""The metrics of this process."""
