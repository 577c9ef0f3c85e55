"""How long the way took: from message to queued run, and on to Spark's first row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.demo.progress import JOIN
from triggerer.store.queries.counts import events_in_runs
from triggerer.store.queries.listing import list_asset_events


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Of some durations, in seconds."""

    count: int
    p50: float
    p95: float


@dataclass(frozen=True, slots=True)
class Latencies:
    """Of one part of the demo; None where nothing was measured."""

    message_to_run: Quantiles | None
    """From the message's own timestamp (the publisher's clock) to the run's `queued_at`."""
    run_to_first_row: Quantiles | None
    """From `queued_at` to the moment in which Spark returned a row of the run's events."""


async def measure(session: AsyncSession, live_from: float) -> tuple[Latencies, Latencies]:
    """Return the backlog's latencies and the live part's."""
    first_rows = await _first_rows(session)
    ways: dict[bool, list[float]] = {True: [], False: []}
    rows: dict[bool, dict[str, float]] = {True: {}, False: {}}
    for sent, run_id, queued_at in await events_in_runs(session, dag_id=JOIN):
        sent_at, queued = _unix(sent), queued_at.timestamp()
        ways[sent_at >= live_from].append(queued - sent_at)
        batch = run_id.replace(":", "-")
        if batch in first_rows:
            rows[queued >= live_from][batch] = first_rows[batch] - queued
    backlog, live = (
        Latencies(_quantiles(ways[is_live]), _quantiles(list(rows[is_live].values())))
        for is_live in (False, True)
    )
    return backlog, live


async def _first_rows(session: AsyncSession) -> dict[str, float]:
    emitted = await list_asset_events(session, dag=JOIN, limit=0)
    return {event.extra["batch"]: event.extra["first_row_at"] for event in emitted}


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
    return float(timestamp) / 1000  # Kafka's own: milliseconds
