"""Asset events as the commands show them; see `triggerer.store.queries.listing`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, Row, Select, except_, func, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from triggerer.store.models import Asset, AssetEvent, Dag, QueuedAssetEvent, Watcher
from triggerer.store.queries.filters import asset_ids, limited
from triggerer.store.queries.views import AssetEventView


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
        query = query.where(AssetEvent.asset_id.in_(await asset_ids(session, asset)))
    if dag is not None:
        query = query.where(AssetEvent.source_dag_id == dag)
    if event_id is not None:
        query = query.where(AssetEvent.id == event_id)
    if state == "queued":
        query = query.where(AssetEvent.id.in_(_WAITING))
    rows: Sequence[Row[AssetEvent, str, str, str]]
    if state is None or state == "queued":
        rows = (await session.execute(limited(query, limit))).all()
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


_WAITING = select(QueuedAssetEvent.asset_event_id).where(QueuedAssetEvent.run_pk.is_(None))


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
        found += await session.execute(limited(stretch, limit and limit - len(found)))
        upper, width = lower, min(4 * width, 16_000)
    return found
