"""Lists assets, DAGs and DAG files for the commands and the API.

Assets are sorted by name, DAGs by id, and files by path. The lists of assets and DAGs take `limit` (0: all), `after`
for the next page, and optional filters, which are combined by "and". An asset is given by its name or its URI.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import ColumnElement, and_, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from triggerer.store.dags.waiting import count_waiting
from triggerer.store.database.script import perform
from triggerer.store.listing.filters import (
    is_asset,
    is_waited_for,
    limited,
    waits_for,
)
from triggerer.store.listing.paging import MOST_COUNTED, Count, count_rows
from triggerer.store.listing.views import (
    AssetView,
    DagFileView,
    DagView,
    DefinitionCounts,
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
    Watcher,
)
from triggerer.store.schema.models.dags import NEVER
from triggerer.store.watchers.listing import count_states


async def list_assets(
    session: AsyncSession,
    *,
    limit: int = 100,
    after: str | None = None,
    asset: str | None = None,
    asset_id: int | None = None,
    dag: str | None = None,
    state: str | None = None,
    prefix: str | None = None,
) -> list[AssetView]:
    """Return assets, sorted by name.

    Args:
        after: Only assets whose names come after this name, for the next page.
        dag: Only assets that the DAG's schedule names.
        state: A key of `ASSET_STATES`. `declared`: a DAG file declares the asset. `undeclared`: no file does.
        prefix: Only assets whose name or URI begins with this.
    """
    # Take the time of the event with the highest id. max(id) is one index look-up, but max(timestamp) would read all
    # events of the asset. Events under an earlier name or URI of the asset do not count.
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
    query = query.where(*_assets(asset, dag, state, prefix))
    if asset_id is not None:
        query = query.where(Asset.id == asset_id)
    if after is not None:
        query = query.where(Asset.name > after)
    rows = (await session.execute(limited(query, limit))).all()
    states = await count_states(session, [row.id for row, _ in rows])
    return [
        view_of(row, AssetView, last_event_timestamp=timestamp, watchers=states.get(row.id, {}))
        for row, timestamp in rows
    ]


async def count_assets(
    session: AsyncSession,
    *,
    asset: str | None = None,
    dag: str | None = None,
    state: str | None = None,
    prefix: str | None = None,
) -> Count:
    """Count the assets that `list_assets` returns with these filters."""
    return await count_rows(session, select(Asset.id).where(*_assets(asset, dag, state, prefix)))


def _assets(
    asset: str | None, dag: str | None, state: str | None, prefix: str | None
) -> list[ColumnElement[bool]]:
    wanted = [] if asset is None else [is_asset(asset)]
    if dag is not None:
        wanted.append(is_waited_for(Asset.id, dag))
    if state is not None:
        wanted.append(ASSET_STATES[state])
    if prefix is not None:
        wanted.append(
            or_(
                Asset.name.startswith(prefix, autoescape=True),
                Asset.uri.startswith(prefix, autoescape=True),
            )
        )
    return wanted


async def list_dags(
    session: AsyncSession,
    *,
    limit: int = 100,
    after: str | None = None,
    dag: str | None = None,
    asset: str | None = None,
    state: str | None = None,
    prefix: str | None = None,
) -> list[DagView]:
    """Return DAGs, sorted by id. The count of a DAG's waiting events stops at `MOST_COUNTED`.

    Args:
        after: Only DAGs after this id.
        asset: Only DAGs whose schedule names this asset.
        state: `active`, `paused` or `stale`. A stale DAG is neither active nor paused.
        prefix: Only DAGs whose id begins with this.
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
    query = query.where(*_dags(dag, asset, state, prefix))
    if after is not None:
        query = query.where(Dag.dag_id > after)
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
        # Leave out a DAG that was deleted after the first query.
        if row.dag_id in waiting
    ]


async def count_dags(
    session: AsyncSession,
    *,
    dag: str | None = None,
    asset: str | None = None,
    state: str | None = None,
    prefix: str | None = None,
) -> Count:
    """Count the DAGs that `list_dags` returns with these filters."""
    return await count_rows(session, select(Dag.dag_id).where(*_dags(dag, asset, state, prefix)))


def _dags(
    dag: str | None, asset: str | None, state: str | None, prefix: str | None
) -> list[ColumnElement[bool]]:
    wanted = [] if dag is None else [Dag.dag_id == dag]
    if asset is not None:
        wanted.append(waits_for(Dag.dag_id, asset))
    if state is not None:
        wanted.append(DAG_STATES[state])
    if prefix is not None:
        wanted.append(Dag.dag_id.startswith(prefix, autoescape=True))
    return wanted


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
    """Return the files with errors, sorted by path."""
    rows = await session.scalars(select(DagFile).order_by(DagFile.path))
    return [DagFileView(row.path, row.errors) for row in rows if row.errors]


async def count_definitions(session: AsyncSession) -> DefinitionCounts:
    """Return the numbers of DAGs that are not stale, of watchers that have a trigger, and of files with errors."""
    dags = await session.scalar(select(func.count()).where(Dag.is_stale.is_(False)))
    watchers = await session.scalar(select(func.count()).where(Watcher.trigger_id.is_not(None)))
    broken = await list_broken_files(session)
    return DefinitionCounts(dags or 0, watchers or 0, len(broken))


async def list_ignored_files(session: AsyncSession) -> list[DagFileView]:
    """Return the files that look like DAG files but are not loaded, sorted by path, each with the reason."""
    query = select(DagFile).where(DagFile.path.not_like("%.py")).order_by(DagFile.path)
    return [
        DagFileView(row.path, row.warnings) for row in await session.scalars(query) if row.warnings
    ]


ASSET_STATES: Final[Mapping[str, ColumnElement[bool]]] = {
    "declared": Asset.declared_in.is_not(None),
    "undeclared": Asset.declared_in.is_(None),
}
DAG_STATES: Final[Mapping[str, ColumnElement[bool]]] = {
    "active": and_(Dag.is_stale.is_(False), Dag.is_paused.is_(False)),
    "paused": and_(Dag.is_stale.is_(False), Dag.is_paused.is_(True)),
    "stale": Dag.is_stale.is_(True),
}
