"""Measures the time from a message to its queued run, and from there to Spark's first row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.demo.progress import JOIN
from triggerer.store.events.listing import list_asset_events
from triggerer.store.listing.counts import events_in_runs


@dataclass(frozen=True, slots=True)
class Quantiles:
    """The number, median and 95th percentile of durations, in seconds."""

    count: int
    p50: float
    p95: float


@dataclass(frozen=True, slots=True)
class Latencies:
    """The latencies of the demo's two parts, the backlog and the live part. None: nothing was measured."""

    backlog_to_run: Quantiles | None
    """From each message to its run's `queued_at`. Most of this time is spent waiting for the previous run."""
    backlog_to_row: Quantiles | None
    """From `queued_at` until Spark returned the first row of the run's events."""
    live_to_run: Quantiles | None
    """From each run's newest message to the run's `queued_at`. A run needs both assets, so this message made it due."""
    live_to_row: Quantiles | None


async def measure(session: AsyncSession, live_from: float) -> Latencies:
    """Measure the latencies. Runs that were queued before `live_from`, a Unix time, belong to the backlog."""
    first_rows = await _first_rows(session)
    newest: dict[str, float] = {}
    queued: dict[str, float] = {}
    backlog: list[float] = []
    for event in await events_in_runs(session, dag_id=JOIN):
        sent = _unix(event.sent)
        queued[event.run_id] = at = event.queued_at.timestamp()
        newest[event.run_id] = max(sent, newest.get(event.run_id, sent))
        if at < live_from:
            backlog.append(at - sent)

    def rows(*, live: bool) -> Quantiles | None:
        return _quantiles(
            [
                first_rows[run_id] - at
                for run_id, at in queued.items()
                if (at >= live_from) is live and run_id in first_rows
            ]
        )

    to_run = [at - newest[run_id] for run_id, at in queued.items() if at >= live_from]
    return Latencies(_quantiles(backlog), rows(live=False), _quantiles(to_run), rows(live=True))


async def _first_rows(session: AsyncSession) -> dict[str, float]:
    emitted = await list_asset_events(session, dag=JOIN, limit=0)
    return {
        event.source_run_id: event.extra["first_row_at"]
        for event in emitted
        if event.source_run_id is not None and event.extra is not None
    }


def _quantiles(values: Sequence[float]) -> Quantiles | None:
    if not values:
        return None
    ordered = sorted(values)

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    return Quantiles(len(ordered), at(0.5), at(0.95))


def _unix(timestamp: Any) -> float:
    if isinstance(timestamp, str):
        return datetime.fromisoformat(timestamp).timestamp()
    return float(timestamp) / 1000  # Kafka's timestamps are in milliseconds
