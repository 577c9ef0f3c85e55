"""Why a run exists, as `triggerer why --json` and the API show it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from triggerer.scheduler.explaining import Why
from triggerer.store.listing.views import AssetEventView


@dataclass(frozen=True, slots=True)
class WhyView:
    """Why a run exists, and what it waits for now."""

    dag_id: str
    run_id: str
    run_type: str
    run_after: datetime
    partition_key: str | None
    logical_date: datetime | None
    data_interval_start: datetime | None
    data_interval_end: datetime | None
    expression: dict[str, Any] | None
    """The DAG's asset expression. Each part has a field `satisfied`: whether the run's events made it true."""
    events: list[AssetEventView]
    """The events that the run took, oldest first."""
    streams: dict[str, str]
    """By watcher (`asset/name`), the upstream that the watcher reads now."""
    waiting_for: str | None = None
    """Why the run does not proceed now. None: it proceeds, or has ended."""
    waiting_since: datetime | None = None


def view_of_why(found: Why) -> WhyView:
    """Return what the commands and the API show about a run: its fields and the reasons."""
    run = found.run
    return WhyView(
        dag_id=run.dag_id,
        run_id=run.run_id,
        run_type=run.run_type,
        run_after=run.run_after,
        partition_key=run.partition_key,
        logical_date=run.logical_date,
        data_interval_start=run.data_interval_start,
        data_interval_end=run.data_interval_end,
        expression=found.expression,
        events=found.events,
        streams=found.streams,
        waiting_for=run.waiting_for,
        waiting_since=run.waiting_since,
    )
