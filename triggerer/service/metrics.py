"""Supplies `/metrics` with the metrics of this process's streams, and with gauges that are read from the database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import anyio
import structlog
from anyio.abc import TaskStatus

from triggerer.domain.live_state import StreamLive
from triggerer.errors import StoreError
from triggerer.observability.metrics import table
from triggerer.observability.metrics.exposition import GATHERING, Sample
from triggerer.observability.metrics.instruments import OTHER
from triggerer.processes.instance_ids import release

if TYPE_CHECKING:
    from triggerer.domain.watchers.parked import ParkedBounds
    from triggerer.store.database.transactions import Database

_log = structlog.get_logger(__name__)

MOST_STREAMS: Final = 50
"""How many streams have series of their own. The other streams are added up as the stream `other`."""
MOST_LANES: Final = 20
"""How many lanes have a series, in all streams together. The lanes with the most outstanding messages are chosen."""
_LOOK_EVERY: Final = timedelta(seconds=15)


def service_samples(database: Database) -> Iterable[Sample]:
    """Yield the metrics that every process of the service has."""
    yield Sample(table.BUILD_INFO, 1, (release(),))
    yield Sample(table.DATABASE_UP, float(database.availability.trouble is None))


async def gathered(
    read: Callable[[], Iterable[Sample]],
    *,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Let every scrape include the samples that `read` returns, until cancelled."""
    remove = GATHERING.add(read)
    try:
        task_status.started()
        await anyio.sleep_forever()
    finally:
        remove()


class StreamMetrics:
    """Reads the metrics of the streams that this instance owns.

    At most `MOST_STREAMS` streams have series of their own. The other streams are added up as the stream `other`. At
    most `MOST_LANES` lanes, in all streams together, have a series.
    """

    def __init__(self, read: Callable[[], Sequence[StreamLive]]) -> None:
        self._read = read
        self._acked: dict[str, tuple[int, int]] = {}
        """For each stream, the numbers of consumed and acked messages at the last scrape."""

    def read(self) -> Iterable[Sample]:
        """Yield the present values."""
        streams = self._read()
        bounded = _bounded(streams)
        for live in bounded:
            yield from _samples_of(live, self._count_acked(live))
        self._acked = {
            live.stream: self._acked[live.stream] for live in bounded if live.stream in self._acked
        }
        shown = {live.stream for live in bounded}
        lanes = Counter[tuple[str, str]]()
        for live in streams:
            name = live.stream if live.stream in shown else OTHER
            for lane in live.lanes:
                lanes[name, lane.lane] += lane.outstanding
        for labels, outstanding in lanes.most_common(MOST_LANES):
            yield Sample(table.LANE_OUTSTANDING, outstanding, labels)

    def _count_acked(self, live: StreamLive) -> int:
        """Return the number of acked messages. While a stream lives, the number never falls from scrape to scrape.

        The number is `advanced` minus `rejected` minus `failed`. A rejected or failed message is subtracted before it
        counts as advanced, so the difference can fall. Then the number of the last scrape is returned.
        """
        acked = max(live.advanced - live.rejected - live.failed, 0)
        consumed, before = self._acked.get(live.stream, (0, 0))
        if live.consumed >= consumed:
            acked = max(acked, before)
        self._acked[live.stream] = live.consumed, acked
        return acked


def _bounded(streams: Sequence[StreamLive]) -> list[StreamLive]:
    """Return up to `MOST_STREAMS` streams, each with series of its own. One further item is the sum of the others."""
    # Sort by name, so that each scrape gives the same streams a series of their own.
    named: dict[str, StreamLive] = {}
    for live in streams:
        # Two streams may have the same readable name.
        named[live.stream] = _sum(named[live.stream], live) if live.stream in named else live
    found = [named[name] for name in sorted(named)]
    if len(found) <= MOST_STREAMS:
        return found
    first, others = found[:MOST_STREAMS], found[MOST_STREAMS:]
    total = replace(others[0], stream=OTHER, system=OTHER)
    for live in others[1:]:
        total = _sum(total, live)
    return [*first, total]


def _sum(one: StreamLive, other: StreamLive) -> StreamLive:
    return replace(
        one,
        epoch=max(one.epoch, other.epoch),
        consumed=one.consumed + other.consumed,
        advanced=one.advanced + other.advanced,
        rejected=one.rejected + other.rejected,
        failed=one.failed + other.failed,
        restarts=one.restarts + other.restarts,
        outstanding=one.outstanding + other.outstanding,
        outstanding_bytes=one.outstanding_bytes + other.outstanding_bytes,
        lag_messages=_sum_of_known(one.lag_messages, other.lag_messages),
        lag_seconds=max(_known(one.lag_seconds, other.lag_seconds), default=None),
        behind=one.behind + other.behind,
        paused=[*one.paused, *other.paused],
    )


def _sum_of_known(*values: int | None) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _known(*values: float | None) -> list[float]:
    return [value for value in values if value is not None]


def _samples_of(live: StreamLive, acked: int) -> Iterable[Sample]:
    name = (live.stream,)
    yield Sample(table.MESSAGES_CONSUMED, live.consumed, (live.stream, live.system))
    yield Sample(table.MESSAGES_ADVANCED, live.advanced, name)
    for outcome, number in (("acked", acked), ("rejected", live.rejected), ("failed", live.failed)):
        yield Sample(table.MESSAGES_RESOLVED, number, (live.stream, outcome))
    if live.lag_messages is not None:
        yield Sample(table.STREAM_LAG_MESSAGES, live.lag_messages, name)
    if live.lag_seconds is not None:
        yield Sample(table.STREAM_LAG_SECONDS, live.lag_seconds, name)
    yield Sample(table.STREAM_OUTSTANDING, live.outstanding, name)
    yield Sample(table.STREAM_OUTSTANDING_BYTES, live.outstanding_bytes, name)
    for reason in sorted({pause.reason for pause in live.paused}):
        yield Sample(table.STREAM_PAUSED, 1, (live.stream, reason))
    yield Sample(table.STREAM_BEHIND, live.behind, name)
    yield Sample(table.STREAM_EPOCH, live.epoch, name)
    yield Sample(table.STREAM_RESTARTS, live.restarts, name)


class DatabaseGauges:
    """Reads the gauges of the database at most every 15 s, and only while a client scrapes `/metrics`.

    A scrape returns the values that were read last, so it never waits for the database.
    """

    def __init__(self, database: Database, bounds: ParkedBounds) -> None:
        self._database = database
        self._bounds = bounds
        self._samples: list[Sample] = []

    def read(self) -> Iterable[Sample]:
        """Return the last gauges that were read."""
        return self._samples

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Read the gauges while somebody scrapes, until cancelled."""
        from triggerer.store.listing.gauges import read_gauges

        remove = GATHERING.add(self.read)
        task_status.started()
        seen = GATHERING.scrapes
        try:
            while True:
                await anyio.sleep(_LOOK_EVERY.total_seconds())
                if seen == GATHERING.scrapes:
                    # Nobody has scraped since the last round of this loop, so nobody needs new values.
                    self._samples = []
                    continue
                seen = GATHERING.scrapes
                try:
                    async with self._database.reading() as session:
                        self._samples = await read_gauges(session, self._bounds)
                except StoreError as error:
                    # Show no values: the old values would look like new ones.
                    self._samples = []
                    _log.debug("the gauges of the database were not read", error=str(error))
        finally:
            remove()
