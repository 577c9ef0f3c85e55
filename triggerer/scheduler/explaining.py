"""Explains why a DAG has no run now, when it will have its next run, and why a run exists.

The answers about the next run come from the module `decide`, which also decides for the scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.assets import AssetAlias
from triggerer.domain.conditions import AssetAll, AssetAny, Condition, Leaf, is_satisfied
from triggerer.domain.pools import choose
from triggerer.domain.schedules import condition_in_json, partition_key_of
from triggerer.domain.timetables import DagRunInfo
from triggerer.errors import PluginError, TriggererError, UnknownDag, UnknownRun
from triggerer.scheduler.decide import look, upcoming
from triggerer.scheduler.explaining_partitions import (
    WaitingPartition,
    WaitingPartitions,
    waiting_partitions,
)
from triggerer.scheduler.holds import Hold
from triggerer.scheduler.looks import DagSnapshot, Look, PartitionQueue
from triggerer.scheduler.plan import BOUND
from triggerer.scheduler.snapshots import snapshot_of
from triggerer.store.dags.listing import (
    schedule_of_dag,
)
from triggerer.store.dags.snapshots import read_dags
from triggerer.store.database.script import perform
from triggerer.store.events.listing import list_events_by_id
from triggerer.store.listing.views import AilingWatcherView, AssetEventView, RunView
from triggerer.store.runs.listing import list_runs
from triggerer.store.runs.pooled_claims import pooled_runs
from triggerer.store.runs.waits import (
    awaited_worker,
    blocked_runs,
    broken_files,
    count_queued,
    unloaded_files,
)
from triggerer.store.watchers.listing import list_ailing_watchers, streams_of_watchers

_WATCHERS_SHOWN: Final = 20
"""The most watchers to show. `triggerer watchers list --dag` shows all of them."""


@dataclass(frozen=True, slots=True)
class NextRun:
    """A run that a timetable asks for."""

    run_after: datetime
    logical_date: datetime
    data_interval_start: datetime
    data_interval_end: datetime
    partition_key: str | None = None


@dataclass(frozen=True, slots=True)
class WaitingEvents:
    """Events of an asset that are queued for a DAG."""

    asset_name: str
    asset_uri: str
    queued: int
    """The number of events if the DAG has `events_per_run`; otherwise 1, which stands for one or more."""


@dataclass(frozen=True, slots=True)
class WhyNot:
    """The reasons why a DAG has no run now, and its next runs."""

    dag_id: str
    runs_due: int
    """The number of runs that are due now. If a scheduler is running, it is about to create them."""
    holds: tuple[Hold, ...]
    """The reasons why queued runs do not start, and why the DAG has no further run after the due runs."""
    next_run: NextRun | None
    """The next run that the DAG's timetable asks for; None: the timetable asks for none, or there is no timetable."""
    waiting: tuple[WaitingEvents, ...]
    partitions: tuple[WaitingPartition, ...] = ()
    """The first waiting keys, in alphabetical order, if the DAG is scheduled by partition keys; otherwise empty."""
    watchers: tuple[AilingWatcherView, ...] = ()
    """Watchers of the DAG's assets that are not running, or may no longer be running. At most 20."""


@dataclass(frozen=True, slots=True)
class Why:
    """Why a run exists."""

    run: RunView
    expression: dict[str, Any] | None
    """The DAG's current expression. In each part, `satisfied` says if the run's events made that part true."""
    events: list[AssetEventView]
    """Oldest first."""
    streams: dict[str, str]
    """Watcher (`asset/name`) to the upstream that it reads now. A deleted watcher is left out."""


async def why_not(
    session: AsyncSession, dag_id: str, *, pools: Mapping[str, int] | None = None
) -> WhyNot:
    """Return what the scheduler would decide now, and why queued runs do not start.

    Args:
        pools: The configured number of slots of each pool.
    Raises:
        UnknownDag: There is no such DAG.
        DagError, PluginError: The schedule cannot be read here.
    """
    dag, keys, found = await _look(session, dag_id)
    pool_holds = await _pool_holds(session, dag_id, pools or {})
    return WhyNot(
        dag_id,
        len(found.runs),
        (
            *(await _queue_holds(session, dag_id, without=len(pool_holds))),
            *found.holds,
            *keys.refusals,
            *pool_holds,
        ),
        None if found.next_info is None else _shown(dag, found.next_info),
        tuple(WaitingEvents(one.name, one.uri, one.queued) for one in dag.waiting),
        keys.keys,
        tuple(await list_ailing_watchers(session, dag_id, limit=_WATCHERS_SHOWN)),
    )


async def next_runs(session: AsyncSession, dag_id: str, count: int) -> list[NextRun]:
    """Return the next runs of the DAG's timetable, at most `count`, due runs first.

    Raises:
        UnknownDag: There is no such DAG.
        DagError, PluginError: The schedule cannot be read in this process.
    """
    dag, _, _ = await _look(session, dag_id)
    with _schedule_code(dag_id):
        return [_shown(dag, info) for info in upcoming(dag, count)]


async def why(session: AsyncSession, dag_id: str, run_id: str) -> Why:
    """Return the run with the events and the expression that caused it.

    Raises:
        UnknownRun: There is no such run.
    """
    runs = await list_runs(session, dag=dag_id, run_id=run_id, with_events=True)
    if not runs:
        raise UnknownRun(dag_id, run_id)
    events = await list_events_by_id(session, runs[0].asset_event_ids)
    condition = condition_in_json(await schedule_of_dag(session, dag_id))
    names = {event.asset_name for event in events}
    sources = {
        (event.asset_name, event.source_watcher)
        for event in events
        if event.source_watcher is not None
    }
    streams = await streams_of_watchers(session, sources)
    return Why(
        runs[0],
        None if condition is None else _state(condition, lambda leaf: _is_among(leaf, names)),
        events,
        {f"{asset}/{name}": stream for (asset, name), stream in sorted(streams.items())},
    )


async def _look(session: AsyncSession, dag_id: str) -> tuple[DagSnapshot, WaitingPartitions, Look]:
    rows = await perform(session, read_dags([dag_id], bound=BOUND))
    if not rows:
        raise UnknownDag(dag_id)
    keys = WaitingPartitions(PartitionQueue())
    if rows[0].is_partitioned:
        keys = await perform(session, waiting_partitions(rows[0], bound=BOUND))
    with _schedule_code(dag_id):
        dag = snapshot_of(rows, keys.queue)
        return dag, keys, look(dag, at_most=BOUND, bound=BOUND)


@contextmanager
def _schedule_code(dag_id: str) -> Iterator[None]:
    """Turn an error of a user's timetable or mapper into `PluginError`."""
    try:
        yield
    except TriggererError:
        raise
    except Exception as error:
        raise PluginError(
            f"the schedule of DAG {dag_id!r} cannot be read: {error!r}",
            hint="the DAG gets no run until its timetable, or its mappers, answer",
        ) from error


async def _pool_holds(session: AsyncSession, dag_id: str, slots: Mapping[str, int]) -> list[Hold]:
    """Return a hold for each queued run of the DAG that waits for a slot of a pool."""
    waiting = await perform(session, pooled_runs())
    chosen = set(
        choose(
            [run for run, _, _ in waiting.queued], waiting.running, slots, limit=len(waiting.queued)
        )
    )
    return [
        Hold.pool(run_id, sorted(run.pools))
        for run, owner, run_id in waiting.queued
        if owner == dag_id and run.run_pk not in chosen
    ]


async def _queue_holds(session: AsyncSession, dag_id: str, *, without: int) -> list[Hold]:
    """Return why queued runs wait: an earlier attempt is still at work, the file does not load, or no worker is free.

    Args:
        without: The number of queued runs that wait for a pool. They do not count as runs that wait for a worker.
    """
    blocked = await blocked_runs(session, dag_id)
    holds = [Hold.attempt(run_id, what) for run_id, what in blocked.items()]
    queued = await count_queued(session, dag_id) - len(blocked)
    errors = await unloaded_files(session, [dag_id]) | await broken_files(session, [dag_id])
    if dag_id in errors:
        holds.append(Hold.file(errors[dag_id], queued))
    elif queued > without:
        holds.append(Hold.worker(queued - without, await awaited_worker(session)))
    return holds


def _shown(dag: DagSnapshot, info: DagRunInfo) -> NextRun:
    key = partition_key_of(dag.schedule, info.data_interval)
    return NextRun(info.run_after, info.logical_date, *info.data_interval, key)


def _is_among(leaf: Leaf, names: set[str]) -> bool:
    # The store does not say through which alias an event came, so any event satisfies an alias.
    return bool(names) if isinstance(leaf, AssetAlias) else leaf.name in names


def _state(condition: Condition, has_event: Callable[[Leaf], bool]) -> dict[str, Any]:
    satisfied = is_satisfied(condition, has_event)
    match condition:
        case AssetAll(objects=parts):
            return {"all": _states(parts, has_event), "satisfied": satisfied}
        case AssetAny(objects=parts):
            return {"any": _states(parts, has_event), "satisfied": satisfied}
        case AssetAlias():
            return {"alias": condition.name, "satisfied": satisfied}
        case _:
            return {"asset": condition.name, "satisfied": satisfied}


def _states(parts: Sequence[Condition], has_event: Callable[[Leaf], bool]) -> list[dict[str, Any]]:
    return [_state(part, has_event) for part in parts]
