"""What the commands show: newest first where things happen in time, else by name.

Every function takes `limit` (0: all) and optional filters that are combined by "and"; an asset is
named by its name or its URI. History grows for ever, so that a page is read from the end of an index; where none
has the order, it says what is walked instead.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar, cast

from sqlalchemy import ColumnElement, Row, Select, and_, except_, exists, func, or_, select, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from triggerer.domain.logs import log_path
from triggerer.store.models import (
    Asset,
    AssetEvent,
    Dag,
    DagFile,
    DagRun,
    DagScheduleAsset,
    QueuedAssetEvent,
    Stream,
    TaskRun,
    Trigger,
    Watcher,
)
from triggerer.store.queries.views import (
    AssetEventView,
    AssetView,
    DagFileView,
    DagView,
    RunView,
    TaskRunView,
    WatcherView,
)

_Query = TypeVar("_Query", bound="Select[*tuple[Any, ...]]")


async def list_assets(
    session: AsyncSession,
    *,
    limit: int = 100,
    asset: str | None = None,
    dag: str | None = None,
    state: str | None = None,
) -> list[AssetView]:
    """Return assets by name.

    Args:
        dag: Leaves those that the DAG waits for.
        state: One of `ASSET_STATES`: whether a file declares it, or it was only ever emitted to.
    """
    # By the newest id rather than max(timestamp): that is one step down an index for each asset.
    any_event = aliased(AssetEvent)
    newest = (
        select(func.max(any_event.id))
        .where(any_event.asset_id == Asset.id)
        .correlate(Asset)
        .scalar_subquery()
    )
    query = (
        select(Asset, AssetEvent.timestamp)
        .outerjoin(AssetEvent, AssetEvent.id == newest)
        .order_by(Asset.name)
    )
    if asset is not None:
        query = query.where(_is_asset(asset))
    if dag is not None:
        query = query.where(_scheduled_on(Asset.id, dag))
    if state is not None:
        query = query.where(ASSET_STATES[state])
    return [
        AssetView(
            row.id, row.name, row.uri, row.group, row.extra, row.declared_in, last_event_timestamp
        )
        for row, last_event_timestamp in await session.execute(_limited(query, limit))
    ]


async def list_asset_events(
    session: AsyncSession,
    *,
    limit: int = 100,
    asset: str | None = None,
    dag: str | None = None,
    event_id: int | None = None,
    state: str | None = None,
) -> list[AssetEventView]:
    """Return events, newest first.

    Args:
        dag: Leaves those that the DAG's runs emitted.
        state: `queued`: a DAG still waits to take it into a run. `consumed`: all that waited have. `unused`: none
            did. The first takes as long as there are queued events, the others as there are events newer than the
            page's last.
    """
    query = (
        select(AssetEvent, Asset.name, Asset.uri, Watcher.name)
        .join(Asset, Asset.id == AssetEvent.asset_id)
        .outerjoin(Watcher, Watcher.id == AssetEvent.watcher_id)
        .order_by(AssetEvent.id.desc())
    )
    if asset is not None:
        query = query.where(AssetEvent.asset_id.in_(await _asset_ids(session, asset)))
    if dag is not None:
        query = query.where(AssetEvent.source_dag_id == dag)
    if event_id is not None:
        query = query.where(AssetEvent.id == event_id)
    if state == "queued":
        query = query.where(AssetEvent.id.in_(_WAITING))
    rows: Sequence[Row[AssetEvent, str, str, str]]
    if state is None or state == "queued":
        rows = (await session.execute(_limited(query, limit))).all()
    else:
        rows = await _walk_events(session, query, _STRETCHES[state], limit)
    return [
        AssetEventView(
            id=event.id,
            asset_name=asset_name,
            asset_uri=asset_uri,
            extra=event.extra,
            timestamp=event.timestamp,
            source_watcher=watcher,
            source_dag_id=event.source_dag_id,
            source_run_id=event.source_run_id,
            source_task_id=event.source_task_id,
            idempotency_key=None
            if event.idempotency_key.startswith("~")
            else event.idempotency_key,
        )
        for event, asset_name, asset_uri, watcher in rows
    ]


async def list_dags(
    session: AsyncSession,
    *,
    limit: int = 100,
    dag: str | None = None,
    asset: str | None = None,
    state: str | None = None,
) -> list[DagView]:
    """Return DAGs by id.

    Args:
        asset: Leaves the DAGs that wait for it.
        state: `active`, `paused` or `stale`; a stale DAG is neither of the others.
    """
    # All at once: asked for one DAG, SQLite goes through all that the DAG ever had queued.
    queued = (
        select(QueuedAssetEvent.dag_id, func.count())
        .where(QueuedAssetEvent.run_pk.is_(None))
        .group_by(QueuedAssetEvent.dag_id)
    )
    waiting = {row[0]: row[1] for row in await session.execute(queued)}
    any_run = aliased(DagRun)
    newest = (
        select(func.max(any_run.id))
        .where(any_run.dag_id == Dag.dag_id)
        .correlate(Dag)
        .scalar_subquery()
    )
    query = (
        select(Dag, DagRun.run_id, DagRun.state)
        .outerjoin(DagRun, DagRun.id == newest)
        .order_by(Dag.dag_id)
    )
    if dag is not None:
        query = query.where(Dag.dag_id == dag)
    if asset is not None:
        query = query.where(
            exists()
            .where(DagScheduleAsset.dag_id == Dag.dag_id)
            .where(DagScheduleAsset.asset_id == Asset.id)
            .where(_is_asset(asset))
        )
    if state is not None:
        query = query.where(_DAG_STATES[state])
    return [
        DagView(
            dag_id=row.dag_id,
            path=row.path,
            description=row.description,
            tags=row.tags,
            schedule=row.schedule,
            max_active_runs=row.max_active_runs,
            events_per_run=row.events_per_run,
            params=row.params,
            tasks=row.tasks,
            is_paused=row.is_paused,
            is_stale=row.is_stale,
            queued_events=waiting.get(row.dag_id, 0),
            last_run_id=last_run_id,
            last_run_state=last_run_state,
        )
        for row, last_run_id, last_run_state in await session.execute(_limited(query, limit))
    ]


async def list_broken_files(session: AsyncSession) -> list[DagFileView]:
    """Return the files with errors, by path."""
    rows = await session.scalars(select(DagFile).order_by(DagFile.path))
    return [DagFileView(row.path, row.errors) for row in rows if row.errors]


async def list_runs(
    session: AsyncSession,
    *,
    limit: int = 100,
    dag: str | None = None,
    run_id: str | None = None,
    asset: str | None = None,
    state: str | None = None,
    with_events: bool = False,
) -> list[RunView]:
    """Return runs, newest first; `asset` leaves those that were given an event of it.

    That one goes through all runs that are newer than the page's last.
    """
    query = select(DagRun).order_by(DagRun.id.desc())
    if dag is not None:
        query = query.where(DagRun.dag_id == dag)
    if run_id is not None:
        query = query.where(DagRun.run_id == run_id)
    if state in ("queued", "running"):
        # Apart from the rest: the planners would sooner go through all runs, which come in the right order.
        active = select(DagRun.id).where(_ACTIVE, DagRun.state == state)
        query = query.where(DagRun.id.in_(active))
    elif state in ("failed", "cancelled"):
        query = query.where(_UNSUCCESSFUL, DagRun.state == state)
    elif state is not None:
        query = query.where(DagRun.state == state)
    if asset is not None:
        query = query.where(
            exists()
            .where(QueuedAssetEvent.run_pk == DagRun.id)
            .where(QueuedAssetEvent.asset_id.in_(await _asset_ids(session, asset)))
        )
    rows = list(await session.scalars(_limited(query, limit)))
    events = await _events_of(session, [row.id for row in rows]) if with_events else {}
    return [_run_view(row, events.get(row.id, [])) for row in rows]


async def find_run(session: AsyncSession, dag_id: str, run_id: str) -> int | None:
    """Return the key by which the executor knows the run; None: there is no such run."""
    query = select(DagRun.id).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id)
    found: int | None = await session.scalar(query)
    return found


async def list_task_runs(session: AsyncSession, dag_id: str, run_id: str) -> list[TaskRunView]:
    """Return the tasks of a run in the order in which they began."""
    query = (
        select(TaskRun)
        .join(DagRun, DagRun.id == TaskRun.run_pk)
        .where(DagRun.dag_id == dag_id, DagRun.run_id == run_id)
    )
    rows = sorted(
        await session.scalars(query), key=lambda row: (str(row.started_at or "~"), row.task_id)
    )
    return [
        TaskRunView(row.task_id, row.state, row.try_number, row.started_at, row.ended_at, row.error)
        for row in rows
    ]


async def list_watchers(
    session: AsyncSession,
    *,
    limit: int = 100,
    asset: str | None = None,
    name: str | None = None,
    dag: str | None = None,
    state: str | None = None,
) -> list[WatcherView]:
    """Return watchers by asset and name; `dag` leaves those of assets that the DAG waits for."""
    query = (
        select(Watcher, Asset.name, Trigger, Stream.key)
        .join(Asset, Asset.id == Watcher.asset_id)
        .join(Trigger, Trigger.id == Watcher.trigger_id)
        .join(Stream, Stream.digest == Trigger.stream_digest)
        .order_by(Asset.name, Watcher.name)
    )
    if asset is not None:
        query = query.where(_is_asset(asset))
    if name is not None:
        query = query.where(Watcher.name == name)
    if dag is not None:
        query = query.where(_scheduled_on(Watcher.asset_id, dag))
    if state is not None:
        query = query.where(Watcher.state == state)
    return [
        WatcherView(
            asset_name=asset_name,
            name=row.name,
            trigger=trigger.classpath,
            stream=key,
            state=row.state,
            error=row.error,
            owner=row.owner,
            kwargs=trigger.kwargs,
            path=row.path,
            updated_at=row.updated_at,
        )
        for row, asset_name, trigger, key in await session.execute(_limited(query, limit))
    ]


_WAITING = select(QueuedAssetEvent.asset_event_id).where(QueuedAssetEvent.run_pk.is_(None))

ASSET_STATES: Final[Mapping[str, ColumnElement[bool]]] = {
    "declared": Asset.declared_in.is_not(None),
    "undeclared": Asset.declared_in.is_(None),
}
# The partial indexes' own words, with no parameter in them: only those does SQLite recognise.
_ACTIVE: Final = text("dag_run.state IN ('queued', 'running')")
_UNSUCCESSFUL: Final = text("dag_run.state IN ('failed', 'cancelled')")
_DAG_STATES: dict[str, ColumnElement[bool]] = {
    "active": and_(Dag.is_stale.is_(False), Dag.is_paused.is_(False)),
    "paused": and_(Dag.is_stale.is_(False), Dag.is_paused.is_(True)),
    "stale": and_(Dag.is_stale.is_(True)),
}


def _limited(query: _Query, limit: int) -> _Query:
    return query.limit(limit) if limit else query


def _is_asset(asset: str) -> ColumnElement[bool]:
    return or_(Asset.name == asset, Asset.uri == asset)


def _scheduled_on(asset_id: Any, dag: str) -> ColumnElement[bool]:
    return exists().where(DagScheduleAsset.asset_id == asset_id, DagScheduleAsset.dag_id == dag)


async def _asset_ids(session: AsyncSession, asset: str) -> Sequence[int]:
    # Asked for by itself: joined, the planners go through the events of all assets.
    return (await session.scalars(select(Asset.id).where(_is_asset(asset)))).all()


# Events, their ids in (lower, upper].
_Stretch = Callable[[int, int], ColumnElement[bool]]


def _queue_entries(lower: int, upper: int) -> Select[int]:
    # The queue has no index by event alone, which each event would pay for: a piece of each DAG's entries instead.
    return select(QueuedAssetEvent.asset_event_id).where(
        QueuedAssetEvent.dag_id.in_(select(Dag.dag_id)),
        QueuedAssetEvent.asset_event_id > lower,
        QueuedAssetEvent.asset_event_id <= upper,
    )


def _consumed(lower: int, upper: int) -> ColumnElement[bool]:
    entries = _queue_entries(lower, upper)
    return AssetEvent.id.in_(
        except_(
            entries.where(QueuedAssetEvent.run_pk.is_not(None)),
            entries.where(QueuedAssetEvent.run_pk.is_(None)),
        )
    )


def _unused(lower: int, upper: int) -> ColumnElement[bool]:
    # Not by NOT IN, which on PostgreSQL compares each with each where it expects many.
    every = aliased(AssetEvent)
    return AssetEvent.id.in_(
        except_(
            select(every.id).where(every.id > lower, every.id <= upper),
            _queue_entries(lower, upper),
        )
    )


_STRETCHES: Final[Mapping[str, _Stretch]] = {"consumed": _consumed, "unused": _unused}
EVENT_STATES: Final = ("queued", *_STRETCHES)


async def _walk_events(
    session: AsyncSession, query: Select[*tuple[Any, ...]], holds: _Stretch, limit: int
) -> list[Any]:
    """Return rows of a query for events, newest first, stretch by stretch until there are enough."""
    found: list[Any] = []
    upper = await session.scalar(select(func.max(AssetEvent.id))) or 0
    width = 1_000
    while upper > 0 and (not limit or len(found) < limit):
        lower = upper - width
        stretch = query.where(AssetEvent.id > lower, AssetEvent.id <= upper, holds(lower, upper))
        found += await session.execute(_limited(stretch, limit and limit - len(found)))
        upper, width = lower, min(4 * width, 16_000)
    return found


async def _events_of(session: AsyncSession, run_pks: Sequence[int]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for start in range(0, len(run_pks), 500):  # below every database's bound on parameters
        query = (
            select(QueuedAssetEvent.run_pk, QueuedAssetEvent.asset_event_id)
            .where(QueuedAssetEvent.run_pk.in_(run_pks[start : start + 500]))
            .order_by(QueuedAssetEvent.run_pk, QueuedAssetEvent.asset_event_id)
        )
        for run_pk, event_id in await session.execute(query):
            found[cast("int", run_pk)].append(event_id)
    return found


def _run_view(row: DagRun, event_ids: list[int]) -> RunView:
    return RunView(
        dag_id=row.dag_id,
        run_id=row.run_id,
        run_type=row.run_type,
        state=row.state,
        logical_date=row.logical_date,
        data_interval_start=row.data_interval_start,
        data_interval_end=row.data_interval_end,
        run_after=row.run_after,
        queued_at=row.queued_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        error=row.error,
        params=row.params,
        exit_code=row.exit_code,
        attempt=row.attempt,
        executor=row.executor,
        log_path=None if row.log_home is None else log_path(row.log_home, row.dag_id, row.run_id),
        asset_event_ids=event_ids,
    )
