"""Counters and histograms without a library, so that counting is cheap and needs no further import.

Only one thread at a time may change a counter or histogram. Another thread may read at any time without a lock: a
reader first copies the values, and the interpreter makes this copy in one step.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["counter", "gauge", "histogram"]
OTHER: Final = "other"
"""The label of an additional series: the sum of all series beyond the limit (`most`) of a counter or histogram."""
SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)
"""The usual upper bounds of a histogram's buckets."""
SINCE_SECONDS: Final = (
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    5.0,
    30.0,
    300.0,
    3600.0,
    86400.0,
)
"""Bounds for a time that is milliseconds while all is well, and hours after an outage."""
LONG_SECONDS: Final = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14400.0)
ROWS: Final = (1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0, 5000.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of the table."""

    name: str
    """The name, with the unit. A counter's name ends in `_total`."""
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    source: str = ""
    """The parts of the service that serve the metric, as text for the documentation."""
    otel: str | None = None
    """The metric's name in OpenTelemetry's semantic conventions. None: the conventions do not have the metric."""


class Counter:
    """A metric that only grows.

    Args:
        most: After this number of series, each new series gets `other` as its first label.
    """

    def __init__(self, metric: Metric, *, most: int = 200) -> None:
        self.metric: Final = metric
        self._most = most
        self._values: dict[tuple[str, ...], float] = {}

    def add(self, amount: float = 1, *labels: str) -> None:
        values = self._values
        if labels in values:
            values[labels] += amount
        else:
            if labels and len(values) >= self._most:
                labels = (OTHER, *labels[1:])
            values[labels] = values.get(labels, 0) + amount

    def clear(self) -> None:
        """Remove all series. For tests."""
        self._values.clear()

    def values(self) -> Mapping[tuple[str, ...], float]:
        """Return the value of each series."""
        return dict(self._values) or ({} if self.metric.labels else {(): 0.0})


class Distribution:
    """One series of a histogram."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def read(self) -> tuple[list[tuple[str, float]], float]:
        """Return the buckets, and the sum of all values.

        A bucket is a pair: its upper bound, and the number of values up to this bound.
        """
        counts, total = list(self._counts), 0
        buckets = []
        for bound, count in zip((*map(str, self._bounds), "+Inf"), counts, strict=True):
            total += count
            buckets.append((bound, float(total)))
        return buckets, self._sum


class Histogram:
    """A metric that counts values by size: one `Distribution` for each combination of labels.

    Args:
        most: The most series. The values of further series are added up in one series, whose labels are all `other`.
    """

    def __init__(
        self, metric: Metric, bounds: Sequence[float] = SECONDS, *, most: int = 20
    ) -> None:
        self.metric: Final = metric
        self._bounds = tuple(bounds)
        self._most = most
        self._series: dict[tuple[str, ...], Distribution] = {}

    def of(self, *labels: str) -> Distribution:
        """Return the series with these labels. A caller that adds values often may keep the series."""
        found = self._series.get(labels)
        if found is None:
            if labels and len(self._series) >= self._most:
                labels = (OTHER,) * len(labels)
            found = self._series.setdefault(labels, Distribution(self._bounds))
        return found

    def observe(self, value: float, *labels: str) -> None:
        self.of(*labels).observe(value)

    def clear(self) -> None:
        """Remove all series, for tests. Code that has kept a series still adds to that series."""
        self._series.clear()

    def series(self) -> Iterator[tuple[tuple[str, ...], Distribution]]:
        return iter(list(self._series.items()))
