"""Turns rows of the database into the snapshots that `decide` looks at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import groupby
from typing import Final

from triggerer.domain.runs import RunType
from triggerer.domain.schedules import schedule_from_text
from triggerer.domain.timetables import DagRunInfo, DataInterval, TimeRestriction
from triggerer.scheduler.looks import DagSnapshot, LastRun, PartitionQueue, WaitingAsset
from triggerer.store.dags.snapshots import DagRow

_NO_KEYS: Final = PartitionQueue()


def rows_by_dag(rows: Sequence[DagRow]) -> Iterator[list[DagRow]]:
    """Yield the rows of each DAG as one list."""
    for _, group in groupby(rows, key=lambda row: row.dag_id):
        yield list(group)


def snapshot_of(rows: Sequence[DagRow], partitions: PartitionQueue | None = None) -> DagSnapshot:
    """Return the snapshot of one DAG.

    Args:
        rows: The rows of one DAG, as `rows_by_dag` yields them.
        partitions: The DAG's partition queue. None: the DAG is not scheduled by partition keys.
    Raises:
        DagError, PluginError: The schedule cannot be read, for instance because a plugin is not installed here.
    """
    first = rows[0]
    last_after, *last_interval = first.last_automated or (None,)
    newest = [row.newest_event for row in rows if row.newest_event is not None]
    return DagSnapshot(
        dag_id=first.dag_id,
        schedule=schedule_from_text(first.schedule_json),
        now=first.now,
        max_active_runs=first.max_active_runs,
        active_runs=first.active_runs,
        events_per_run=first.events_per_run,
        waiting=_waiting_assets(rows),
        is_paused=first.is_paused,
        is_stale=first.is_stale,
        restriction=TimeRestriction(first.start_date, first.end_date, first.catchup),
        last_interval=DataInterval(*last_interval) if last_interval else None,
        last_run_after=last_after,
        stored_info=stored_info(first),
        covered_intervals=frozenset(
            DataInterval(*interval) for interval in first.covered_intervals
        ),
        last_run_at=first.last_run_at,
        min_run_gap=_seconds(first.min_run_gap),
        quiet_period=_seconds(first.quiet_period),
        newest_event=max(newest, default=None),
        depends_on_past=first.depends_on_past,
        last_run=None if first.last_run is None else LastRun(*first.last_run),
        last_kind=None if first.last_kind is None else RunType(first.last_kind),
        partitions=partitions or _NO_KEYS,
    )


def stored_info(row: DagRow) -> DagRunInfo | None:
    """Return the timetable's next run, as stored. None: the timetable asked for no run, or was not asked yet."""
    start, end = row.next_interval_start, row.next_interval_end
    if start is None or end is None:
        return None
    return DagRunInfo(row.next_run_after, DataInterval(start, end))


def _seconds(value: float | None) -> timedelta | None:
    return None if value is None else timedelta(seconds=value)


def _waiting_assets(rows: Sequence[DagRow]) -> tuple[WaitingAsset, ...]:
    assets = []
    for asset_id, group in groupby(rows, key=lambda row: row.asset_id):
        if asset_id is None:
            continue
        same = list(group)
        aliases = frozenset(row.alias for row in same if row.alias is not None)
        first = same[0]
        assets.append(WaitingAsset(asset_id, first.name, first.uri, first.queued, aliases))
    return tuple(assets)
