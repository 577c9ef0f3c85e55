"""Reads the DAGs as the scheduler sees them now, for `triggerer plan` to compare with other files."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from triggerer.domain.dag_files.parsed import ParsedDag
from triggerer.domain.partitions.dividing import KeyedEvent, Share
from triggerer.domain.runs import RunType
from triggerer.domain.schedules import OnPartitions, schedule_from_json
from triggerer.errors import DagError, PluginError
from triggerer.scheduler.dividing import is_partitioned, partitioner_of
from triggerer.scheduler.explaining_partitions import (
    NO_PAST,
    KeyedPast,
    past_of,
    waiting_partitions,
)
from triggerer.scheduler.looks import DagSnapshot, LastRun, WaitingAsset
from triggerer.scheduler.replay import Definition
from triggerer.scheduler.snapshots import rows_by_dag, snapshot_of
from triggerer.store.dags.listing import paths_of_dags
from triggerer.store.dags.snapshots import CLOCK_STEP, DagRow, read_dags
from triggerer.store.dags.waiting import (
    Counts,
    count_queued,
    count_shared,
    last_runs,
    newest_queued,
    waiting_events,
)
from triggerer.store.database.script import Script
from triggerer.store.database.separate_transactions import perform_in_separate_transactions
from triggerer.store.database.transactions import Database

MOST_AT_ONCE: Final = 1_000
"""The most runs that a plan computes for one DAG from the events that wait now."""
_MOST_EVENTS: Final = 10_000
"""The most waiting events that a plan counts for each asset of a DAG.

Also the most waiting events of a DAG whose partition keys a plan computes with a new definition.
"""


@dataclass(frozen=True, slots=True)
class PresentDag:
    """A DAG of the present folder, or a stale DAG that the new folder defines again."""

    path: str
    is_stale: bool
    """True if the DAG's file, or the DAG in this file, is gone.

    The store still has the DAG's pause, runs and waiting events.
    """
    snapshot: DagSnapshot | None
    """The scheduler's snapshot of the DAG. None: the DAG cannot be read here, see `error`."""
    queued: int
    """The number of events that wait for the DAG, counted up to a limit for each asset."""
    is_counted_short: bool
    """True if more events may wait."""
    waiting: tuple[KeyedEvent, ...] = ()
    """The first waiting events. Read only if the definition changes, and the old or the new definition has partition
    keys."""
    past: KeyedPast = NO_PAST
    """The past of the partition keys to which the new definition maps `waiting`: the keys that have had runs, and the
    events that these runs took.
    """
    error: str | None = None


async def present_dags(
    database: Database, new: Mapping[str, ParsedDag], *, dag: str | None
) -> dict[str, PresentDag]:
    """Return the present DAGs by id. A stale DAG is included if the new folder defines it.

    Args:
        new: The DAGs of the new folder.
        dag: The result has only this DAG. None: all DAGs.
    """
    async with database.reading() as session:
        paths = await paths_of_dags(session, dag=dag)
    dags = {
        dag_id: (path, is_stale)
        for dag_id, (path, is_stale) in paths.items()
        if not is_stale or dag_id in new
    }
    if not dags:
        return {}
    ids = sorted(dags)
    rows = await perform_in_separate_transactions(database, read_dags(ids, bound=MOST_AT_ONCE))
    queued = await perform_in_separate_transactions(database, count_queued(ids, bound=_MOST_EVENTS))
    found = {}
    for group in rows_by_dag(rows):
        dag_id = group[0].dag_id
        counts = queued.get(dag_id, {})
        path, is_stale = dags[dag_id]
        try:
            found[dag_id] = await _present(database, path, group, counts, new.get(dag_id))
        except (DagError, PluginError) as error:
            # For instance, the DAG's timetable is not installed here. The plan shows the error for this DAG.
            total = sum(counts.values())
            found[dag_id] = PresentDag(path, is_stale, None, total, False, error=str(error))
    return found


async def _present(
    database: Database, path: str, rows: Sequence[DagRow], queued: Counts, new: ParsedDag | None
) -> PresentDag:
    dag_id = rows[0].dag_id
    queue = None
    if rows[0].is_partitioned:
        queue = (
            await perform_in_separate_transactions(
                database, waiting_partitions(rows[0], bound=MOST_AT_ONCE)
            )
        ).queue
        shared = await perform_in_separate_transactions(
            database, count_shared(dag_id, bound=_MOST_EVENTS)
        )
        queued = {one: queued.get(one, 0) + shared.get(one, 0) for one in {*queued, *shared}}
    snapshot = _counted(snapshot_of(rows, queue), queued)
    total = sum(queued.values())
    is_short = any(count >= _MOST_EVENTS for count in queued.values())
    present = PresentDag(path, snapshot.is_stale, snapshot, total, is_short)
    if new is None or _is_same(snapshot, new):
        return present
    waiting, past = [], NO_PAST
    if queue is not None or is_partitioned(new.schedule):
        waiting = await perform_in_separate_transactions(
            database, waiting_events(dag_id, limit=_MOST_EVENTS)
        )
        past = await perform_in_separate_transactions(
            database, past_of(dag_id, _divided(new, waiting))
        )
    facts = await perform_in_separate_transactions(
        database, _facts(snapshot, waiting, rows[0].now + CLOCK_STEP)
    )
    return replace(present, snapshot=facts, waiting=tuple(waiting), past=past)


def _divided(new: ParsedDag, waiting: Sequence[KeyedEvent]) -> Sequence[Share]:
    try:
        schedule = definition_in(new).schedule
        if not isinstance(schedule, OnPartitions):
            return ()
        return partitioner_of(schedule).divide(waiting, most=sys.maxsize).shares
    except Exception:  # noqa: BLE001  (the boundary to users' timetables; the plan of the DAG says why)
        return ()


def _facts(
    snapshot: DagSnapshot, waiting: Sequence[KeyedEvent], soon: datetime
) -> Script[DagSnapshot]:
    """Add to the snapshot the values that only the new definition may need."""
    dag_id = snapshot.dag_id
    last, kind = yield from last_runs(dag_id)
    asset_ids = [one.asset_id for one in snapshot.waiting]
    newest = [
        *(yield from newest_queued(dag_id, asset_ids, soon=soon)),
        *(one.timestamp for one in waiting if one.timestamp <= soon),
    ]
    return replace(
        snapshot,
        last_run=None if last is None else LastRun(*last),
        last_kind=None if kind is None else RunType(kind),
        newest_event=max(newest, default=None),
    )


def _is_same(snapshot: DagSnapshot, new: ParsedDag) -> bool:
    try:
        return definition_of(snapshot) == definition_in(new)
    except Exception:  # noqa: BLE001  (the boundary to users' timetables; the plan of the DAG says why)
        return False


def _counted(snapshot: DagSnapshot, queued: Counts) -> DagSnapshot:
    """Replace the snapshot's numbers of waiting events with those in `queued`.

    The snapshot's own numbers may be too low for a new definition. It counts only as many events as the scheduler needs
    now, and only events of assets for which the DAG waits now.
    """
    aliases = {one.asset_id: one.aliases for one in snapshot.waiting}
    waiting = (
        WaitingAsset(*asset, count, aliases.get(asset[0], frozenset()))
        for asset, count in queued.items()
    )
    return replace(snapshot, waiting=tuple(waiting))


def definition_of(dag: DagSnapshot) -> Definition:
    """Return the attributes of a present DAG on which its runs depend."""
    return Definition(
        dag.dag_id,
        dag.schedule,
        dag.events_per_run,
        dag.restriction.earliest,
        dag.restriction.latest,
        dag.restriction.catchup,
        dag.min_run_gap,
        dag.quiet_period,
        dag.max_active_runs,
        dag.depends_on_past,
    )


def definition_in(dag: ParsedDag) -> Definition:
    """Return the attributes of a parsed DAG on which its runs depend.

    Raises:
        Exception: A timetable from a plugin failed.
    """
    return Definition(
        dag.dag_id,
        schedule_from_json(dag.schedule),
        dag.events_per_run,
        dag.start_date,
        dag.end_date,
        dag.catchup,
        None if dag.min_run_gap is None else timedelta(seconds=dag.min_run_gap),
        None if dag.quiet_period is None else timedelta(seconds=dag.quiet_period),
        dag.max_active_runs,
        dag.depends_on_past,
    )
