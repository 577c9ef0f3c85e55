"""Reports that a name in a command is unknown, and suggests the nearest known name."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Select, select, union
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.errors import (
    UnknownAsset,
    UnknownDag,
    UnknownName,
    UnknownRun,
    UnknownWatcher,
)
from triggerer.nearest import nearest
from triggerer.store.listing.filters import is_asset
from triggerer.store.schema.models import Asset, Dag, DagRun, Watcher

_MOST: Final = 10_000
"""How many known names are compared with the unknown name. The other names are never suggested."""


async def refuse_unknown(
    session: AsyncSession,
    *,
    dag: str | None = None,
    asset: str | None = None,
    watcher: str | None = None,
) -> None:
    """Raise if a filter names an unknown object. Call it when a list with these filters is empty.

    Args:
        asset: A name or a URI.
        watcher: A watcher of `asset`.
    Raises:
        UnknownDag, UnknownAsset, UnknownWatcher: The hint suggests the nearest name.
    """
    if dag is not None and not await _is_dag(session, dag):
        raise await with_suggestion(session, UnknownDag(dag))
    if asset is not None and not await _is_asset(session, asset):
        raise await with_suggestion(session, UnknownAsset(asset))
    if asset is not None and watcher is not None:
        found = select(Watcher.id).join(Asset, Asset.id == Watcher.asset_id)
        if not await _finds(session, found.where(is_asset(asset), Watcher.name == watcher)):
            raise await with_suggestion(session, UnknownWatcher(asset, watcher))


async def with_suggestion(session: AsyncSession, error: UnknownName) -> UnknownName:
    """Return the error with the nearest known name as its hint.

    If the run's DAG is unknown too, return an error about the DAG. If the watcher's asset is unknown too, return an
    error about the asset.
    """
    if error.has_suggestion:
        return error
    match error:
        case UnknownDag():
            return error.suggest(await dag_ids(session))
        case UnknownAsset():
            return error.suggest(await asset_names(session))
        case UnknownRun() if not await _is_dag(session, error.dag_id):
            return await with_suggestion(session, UnknownDag(error.dag_id))
        case UnknownRun():
            close = nearest(error.run_id, await run_ids(session, error.dag_id))
            return error if close is None else error.suggest([close])
        case UnknownWatcher() if not await _is_asset(session, error.asset):
            return await with_suggestion(session, UnknownAsset(error.asset))
        case UnknownWatcher():
            return error.suggest(await _watchers_of(session, error.asset))
    return error


async def dag_ids(session: AsyncSession) -> list[str]:
    """Return the ids of all DAGs, including stale ones, sorted."""
    return await _texts(session, select(Dag.dag_id).order_by(Dag.dag_id))


async def run_ids(session: AsyncSession, dag_id: str) -> list[str]:
    """Return the ids of a DAG's runs, newest first."""
    query = select(DagRun.run_id).where(DagRun.dag_id == dag_id).order_by(DagRun.id.desc())
    return await _texts(session, query)


async def asset_names(session: AsyncSession) -> list[str]:
    """Return the names and URIs of the assets, sorted and without repetitions."""
    either = union(select(Asset.name.label("name")), select(Asset.uri.label("name"))).subquery()
    return await _texts(session, select(either.c.name).order_by(either.c.name))


async def watcher_names(session: AsyncSession) -> list[str]:
    """Return the watchers as ASSET/NAME, in order."""
    query = select(Asset.name + "/" + Watcher.name).select_from(Watcher)
    query = query.join(Asset, Asset.id == Watcher.asset_id)
    return await _texts(session, query.order_by(Asset.name, Watcher.name))


async def _watchers_of(session: AsyncSession, asset: str) -> list[str]:
    query = select(Watcher.name).join(Asset, Asset.id == Watcher.asset_id)
    return await _texts(session, query.where(is_asset(asset)).order_by(Watcher.name))


async def _is_dag(session: AsyncSession, dag_id: str) -> bool:
    return await _finds(session, select(Dag.dag_id).where(Dag.dag_id == dag_id))


async def _is_asset(session: AsyncSession, asset: str) -> bool:
    return await _finds(session, select(Asset.id).where(is_asset(asset)))


async def _finds(session: AsyncSession, query: Select[Any]) -> bool:
    return await session.scalar(query.limit(1)) is not None


async def _texts(session: AsyncSession, query: Select[Any]) -> list[str]:
    return list(await session.scalars(query.limit(_MOST)))
