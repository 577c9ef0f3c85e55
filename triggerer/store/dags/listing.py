"""Lists for the commands and the API. Lists of things with a time are newest first, other lists are by name.

Every function takes `limit` (0: all) and optional filters, which are combined by "and". An asset is given by its name
or its URI. History grows for ever, so a page is read from the end of an index. If no index has the order, the docstring
says what the query walks instead.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import ColumnElement, and_, case, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from triggerer.observability.redaction import redact, redact_text
from triggerer.store.dags.waiting import count_waiting
from triggerer.store.database.script import perform
from triggerer.store.database.transactions import database_now
from triggerer.store.listing.filters import (
    is_asset,
    is_waited_for,
    limited,
    some_of,
    waits_for,
)
from triggerer.store.listing.views import (
    AilingWatcherView,
    AssetView,
    DagFileView,
    DagView,
    DefinitionCounts,
    PositionView,
    WatcherView,
    view_of,
)
from triggerer.store.runs.waits import broken_files, unloaded_files
from triggerer.store.schema.models import (
    Asset,
    AssetEvent,
    Dag,
    DagFile,
    DagRun,
    FormerIdentity,
    Stream,
    Trigger,
    Watcher,
    WatcherPosition,
)
from triggerer.store.schema.models.dags import NEVER
from triggerer.store.streams.liveness import GONE, Liveness, known_instances, why_silent
from triggerer.store.watchers.parked_listing import count_set_aside, count_stored

MOST_COUNTED: Final = 1_000


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
        dag: Only assets that the DAG waits for.
        state: A key of `ASSET_STATES`: a file declares the asset, or only events have named it.
    """
    # The newest id rather than max(timestamp), because that is one index look-up for each asset.
    any_event = aliased(AssetEvent)
    others = (
        select(func.max(FormerIdentity.last_event_id))
        .where(FormerIdentity.asset_id == Asset.id)
        .correlate(Asset)
        .scalar_subquery()
    )
    newest = (
        select(func.max(any_event.id))
        .where(any_event.asset_id == Asset.id, any_event.id > func.coalesce(others, 0))
        .correlate(Asset)
        .scalar_subquery()
    )
    query = (
        select(Asset, AssetEvent.timestamp)
        .outerjoin(AssetEvent, AssetEvent.id == newest)
        .order_by(Asset.name)
    )
    if asset is not None:
        query = query.where(is_asset(asset))
    if dag is not None:
        query = query.where(is_waited_for(Asset.id, dag))
    if state is not None:
        query = query.where(ASSET_STATES[state])
    return [
        view_of(row, AssetView, last_event_timestamp=timestamp)
        for row, timestamp in await session.execute(limited(query, limit))
    ]


async def list_dags(
    session: AsyncSession,
    *,
    limit: int = 100,
    dag: str | None = None,
    asset: str | None = None,
    state: str | None = None,
) -> list[DagView]:
    """Return DAGs by id. Counting of their waiting events stops at `MOST_COUNTED`.

    Args:
        asset: Only DAGs that wait for this asset.
        state: `active`, `paused` or `stale`. A stale DAG is neither active nor paused.
    """
    any_run = aliased(DagRun)
    newest = (
        select(func.max(any_run.id))
        .where(any_run.dag_id == Dag.dag_id)
        .correlate(Dag)
        .scalar_subquery()
    )
    query = (
        select(Dag, DagFile.missing_since, DagFile.warnings, DagRun.run_id, DagRun.state)
        .select_from(Dag)
        .outerjoin(DagRun, DagRun.id == newest)
        .outerjoin(DagFile, DagFile.path == Dag.path)
        .order_by(Dag.dag_id)
    )
    if dag is not None:
        query = query.where(Dag.dag_id == dag)
    if asset is not None:
        query = query.where(waits_for(Dag.dag_id, asset))
    if state is not None:
        query = query.where(DAG_STATES[state])
    found = (await session.execute(limited(query, limit))).all()
    ids = [row.dag_id for row, *_ in found]
    waiting = await perform(session, count_waiting(ids, bound=MOST_COUNTED))
    errors = await unloaded_files(session, ids) | await broken_files(session, ids)
    return [
        view_of(
            row,
            DagView,
            file_missing_since=missing_since,
            file_warnings=warnings or [],
            file_error=errors.get(row.dag_id),
            queued_events=waiting[row.dag_id].events,
            is_counted_short=waiting[row.dag_id].is_counted_short,
            last_run_id=last_run_id,
            last_run_state=last_run_state,
            next_run_after=None
            if row.is_stale or row.next_run_after == NEVER
            else row.next_run_after,
        )
        for row, missing_since, warnings, last_run_id, last_run_state in found
        # The DAG may have been deleted since the first query.
        if row.dag_id in waiting
    ]


async def paths_of_dags(
    session: AsyncSession, *, dag: str | None = None
) -> dict[str, tuple[str, bool]]:
    """Return, by DAG id, the DAG's file and whether the DAG is stale."""
    query = select(Dag.dag_id, Dag.path, Dag.is_stale).order_by(Dag.dag_id)
    if dag is not None:
        query = query.where(Dag.dag_id == dag)
    rows = await session.execute(query)
    return {dag_id: (path, is_stale) for dag_id, path, is_stale in rows}


async def schedule_of_dag(session: AsyncSession, dag_id: str) -> Any:
    """Return the stored schedule of a DAG, stale or not, as JSON."""
    return await session.scalar(select(Dag.schedule).where(Dag.dag_id == dag_id))


async def list_broken_files(session: AsyncSession) -> list[DagFileView]:
    """Return the files with errors, by path."""
    rows = await session.scalars(select(DagFile).order_by(DagFile.path))
    return [DagFileView(row.path, row.errors) for row in rows if row.errors]


async def count_definitions(session: AsyncSession) -> DefinitionCounts:
    """Return the numbers of present DAGs and watchers, and of files with errors."""
    dags = await session.scalar(select(func.count()).where(Dag.is_stale.is_(False)))
    watchers = await session.scalar(select(func.count()).where(Watcher.trigger_id.is_not(None)))
    broken = await list_broken_files(session)
    return DefinitionCounts(dags or 0, watchers or 0, len(broken))


async def list_ignored_files(session: AsyncSession) -> list[DagFileView]:
    """Return the files that look like DAG files but are not loaded, by path, each with the reason."""
    query = select(DagFile).where(DagFile.path.not_like("%.py")).order_by(DagFile.path)
    return [
        DagFileView(row.path, row.warnings) for row in await session.scalars(query) if row.warnings
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
    """Return watchers by asset and name.

    Args:
        dag: Only watchers of assets that the DAG waits for.
    """
    now = await database_now(session)
    instances = await known_instances(session)
    shown_state = _shown_state(now)
    query = (
        select(Watcher, Asset.name, Trigger, Stream, shown_state)
        .join(Asset, Asset.id == Watcher.asset_id)
        .join(Trigger, Trigger.id == Watcher.trigger_id)
        .join(Stream, Stream.digest == Trigger.stream_digest)
        .order_by(Asset.name, Watcher.name)
    )
    if asset is not None:
        query = query.where(is_asset(asset))
    if name is not None:
        query = query.where(Watcher.name == name)
    if dag is not None:
        query = query.where(is_waited_for(Watcher.asset_id, dag))
    if state is not None:
        query = query.where(shown_state == state)
    found = (await session.execute(limited(query, limit))).all()
    positions = await _positions_of(session, [row for row, *_ in found])
    set_aside = await count_set_aside(session, [row.id for row, *_ in found])
    return [
        view_of(
            row,
            WatcherView,
            asset_name=asset_name,
            trigger=trigger.classpath,
            guarantee=trigger.guarantee,
            stream=redact_text(stream.key),
            stream_id=trigger.stream_digest,
            state=shown,
            owner_seen_at=known.seen_at,
            lease_ends_at=stream.expires_at if stream.owner == row.owner else None,
            reason=_why_unsure(row, shown, known, now),
            error=None if row.error is None else redact_text(row.error),
            traceback=None if row.traceback is None else redact_text(row.traceback),
            kwargs=redact("", trigger.kwargs),
            positions=behind,
            behind=_how_far(row.state, behind),
            set_aside=set_aside.get(row.id, 0),
            behind_since=min((one.since for one in behind), default=None),
        )
        for row, asset_name, trigger, stream, shown in found
        for behind in [positions.get(row.id, [])]
        for known in [instances.get(row.owner or "", GONE)]
    ]


def _how_far(state: str, positions: Sequence[PositionView]) -> int | None:
    """Return how many messages a watcher is behind, or None if unknown. A failing watcher leaves them at the broker."""
    numbers = [one.behind for one in positions]
    if state == "failing" and not numbers:
        return None
    return None if None in numbers else sum(filter(None, numbers))


async def streams_of_watchers(
    session: AsyncSession, watchers: Collection[tuple[str, str]]
) -> dict[tuple[str, str], str]:
    """Return the readable stream keys of these watchers (asset, name). A deleted watcher is left out."""
    found: dict[tuple[str, str], str] = {}
    query = (
        select(Asset.name, Watcher.name, Stream.key)
        .join(Asset, Asset.id == Watcher.asset_id)
        .join(Trigger, Trigger.id == Watcher.trigger_id)
        .join(Stream, Stream.digest == Trigger.stream_digest)
    )
    for asset in sorted({asset for asset, _ in watchers}):
        for asset_name, name, stream in await session.execute(query.where(Asset.name == asset)):
            if (asset_name, name) in watchers:
                found[asset_name, name] = redact_text(stream)
    return found


async def list_ailing_watchers(
    session: AsyncSession, dag: str, *, limit: int
) -> list[AilingWatcherView]:
    """Return the watchers of the DAG's assets that are not running, by asset and name.

    A watcher whose owner has missed a heartbeat is included, with the reason.
    """
    now = await database_now(session)
    instances = await known_instances(session)
    silent = [owner for owner, known in instances.items() if known.is_silent]
    shown_state = _shown_state(now)
    query = (
        select(Watcher, Asset.name, shown_state)
        .join(Asset, Asset.id == Watcher.asset_id)
        .join(Trigger, Trigger.id == Watcher.trigger_id)
        .join(Stream, Stream.digest == Trigger.stream_digest)
        .where(
            is_waited_for(Watcher.asset_id, dag),
            or_(shown_state != "running", Watcher.owner.in_(silent)),
        )
        .order_by(Asset.name, Watcher.name)
        .limit(limit)
    )
    return [
        AilingWatcherView(
            asset,
            row.name,
            shown,
            None if row.error is None else redact_text(row.error),
            _why_unsure(row, shown, instances.get(row.owner or "", GONE), now),
        )
        for row, asset, shown in await session.execute(query)
    ]


def _shown_state(now: datetime) -> ColumnElement[str]:
    """The state of the `Watcher`. It is waiting if nobody owns its `Stream`, even if the last owner wrote otherwise."""
    is_unowned = or_(Stream.owner.is_(None), Stream.expires_at <= now)
    return case((is_unowned, "waiting"), else_=Watcher.state)


def _why_unsure(row: Watcher, shown: str, known: Liveness, now: datetime) -> str | None:
    """Return why the stored state may be out of date, or why another is shown. None: the state is certain."""
    if row.owner is None or not (known.is_silent or shown != row.state):
        return None
    return why_silent(row.owner, known, now)


async def _positions_of(
    session: AsyncSession, watchers: Sequence[Watcher]
) -> dict[int, list[PositionView]]:
    """Return the backlogs of these watchers by lane. A running watcher has caught up, so it has none."""
    behind = [row.id for row in watchers if row.state != "running"]
    found: dict[int, list[PositionView]] = {}
    query = select(WatcherPosition).order_by(WatcherPosition.watcher_id, WatcherPosition.lane)
    for chosen in some_of(behind, WatcherPosition.watcher_id):
        for row in await session.scalars(query.where(chosen)):
            left = None if row.head is None else max(row.head - row.position[1], 0)
            view = PositionView(row.lane, row.position, left, row.since)
            found.setdefault(row.watcher_id, []).append(view)
    for watcher_id, lane, count, since in await count_stored(session, behind):
        found.setdefault(watcher_id, []).append(PositionView(lane, None, count, since))
    return found


ASSET_STATES: Final[Mapping[str, ColumnElement[bool]]] = {
    "declared": Asset.declared_in.is_not(None),
    "undeclared": Asset.declared_in.is_(None),
}
DAG_STATES: Final[Mapping[str, ColumnElement[bool]]] = {
    "active": and_(Dag.is_stale.is_(False), Dag.is_paused.is_(False)),
    "paused": and_(Dag.is_stale.is_(False), Dag.is_paused.is_(True)),
    "stale": Dag.is_stale.is_(True),
}
