"""Lists watchers for the commands and the API, with their states and backlogs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, and_, case, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.observability.redaction import redact, redact_text
from triggerer.store.database.transactions import database_now
from triggerer.store.listing.filters import (
    is_asset,
    is_waited_for,
    limited,
    some_of,
)
from triggerer.store.listing.paging import Count, count_rows
from triggerer.store.listing.views import (
    AilingWatcherView,
    PositionView,
    WatcherView,
    view_of,
)
from triggerer.store.schema.models import (
    Asset,
    Stream,
    Trigger,
    Watcher,
    WatcherPosition,
)
from triggerer.store.streams.liveness import GONE, Liveness, known_instances, why_silent
from triggerer.store.watchers.parked_listing import count_set_aside, count_stored


async def list_watchers(
    session: AsyncSession,
    *,
    limit: int = 100,
    after: tuple[str, str] | None = None,
    asset: str | None = None,
    name: str | None = None,
    dag: str | None = None,
    state: str | None = None,
    stream: str | None = None,
) -> list[WatcherView]:
    """Return watchers, sorted by asset and name.

    Args:
        after: Only watchers after this asset and name.
        dag: Only watchers of assets that the DAG's schedule names.
        stream: Only watchers of the stream with this digest.
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
    query = query.where(*_watchers(asset, name, dag, stream))
    if state is not None:
        query = query.where(shown_state == state)
    if after is not None:
        asset_name, watcher = after
        later_in_asset = and_(Asset.name == asset_name, Watcher.name > watcher)
        query = query.where(Asset.name >= asset_name, or_(Asset.name > asset_name, later_in_asset))
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
            behind=_messages_behind(row.state, behind),
            set_aside=set_aside.get(row.id, 0),
            behind_since=min((one.since for one in behind), default=None),
        )
        for row, asset_name, trigger, stream, shown in found
        for behind in [positions.get(row.id, [])]
        for known in [instances.get(row.owner or "", GONE)]
    ]


async def count_states(session: AsyncSession, assets: Sequence[int]) -> dict[int, dict[str, int]]:
    """Return, by asset id, how many watchers the asset has in each state. Assets without a watcher are left out."""
    shown_state = _shown_state(await database_now(session))
    found: dict[int, dict[str, int]] = {}
    for chosen in some_of(assets, Watcher.asset_id):
        query = (
            select(Watcher.asset_id, shown_state, func.count())
            .join(Trigger, Trigger.id == Watcher.trigger_id)
            .join(Stream, Stream.digest == Trigger.stream_digest)
            .where(chosen)
            .group_by(Watcher.asset_id, shown_state)
        )
        for asset_id, state, count in await session.execute(query):
            found.setdefault(asset_id, {})[state] = count
    return found


async def count_watchers(
    session: AsyncSession,
    *,
    asset: str | None = None,
    name: str | None = None,
    dag: str | None = None,
    state: str | None = None,
    stream: str | None = None,
) -> Count:
    """Count the watchers that `list_watchers` returns with these filters."""
    query = (
        select(Watcher.id)
        .join(Asset, Asset.id == Watcher.asset_id)
        .join(Trigger, Trigger.id == Watcher.trigger_id)
        .where(*_watchers(asset, name, dag, stream))
    )
    if state is not None:
        query = query.join(Stream, Stream.digest == Trigger.stream_digest)
        query = query.where(_shown_state(await database_now(session)) == state)
    return await count_rows(session, query)


def _watchers(
    asset: str | None, name: str | None, dag: str | None, stream: str | None
) -> list[ColumnElement[bool]]:
    wanted = [] if asset is None else [is_asset(asset)]
    if name is not None:
        wanted.append(Watcher.name == name)
    if dag is not None:
        wanted.append(is_waited_for(Watcher.asset_id, dag))
    if stream is not None:
        wanted.append(Trigger.stream_digest == stream)
    return wanted


async def list_ailing_watchers(
    session: AsyncSession, dag: str, *, limit: int
) -> list[AilingWatcherView]:
    """For the assets in the DAG's schedule, return the watchers that are not running, sorted by asset and name.

    A watcher whose owner has missed a heartbeat is included too, because it may no longer run.
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


async def streams_of_watchers(
    session: AsyncSession, watchers: Collection[tuple[str, str]]
) -> dict[tuple[str, str], str]:
    """Return the stream key as text for each of these watchers (asset, name). Deleted watchers are left out."""
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


def _messages_behind(state: str, positions: Sequence[PositionView]) -> int | None:
    """Return how many messages a watcher is behind; None if unknown.

    A failing watcher without a backlog may miss messages that are still at the broker. Their number is unknown.
    """
    numbers = [one.behind for one in positions]
    if state == "failing" and not numbers:
        return None
    return None if None in numbers else sum(filter(None, numbers))


def _shown_state(now: datetime) -> ColumnElement[str]:
    """Return an expression for the state of the `Watcher`, in a query with its `Stream`.

    The state is `waiting` if no instance owns the stream, even if the last owner stored another state.
    """
    is_unowned = or_(Stream.owner.is_(None), Stream.expires_at <= now)
    return case((is_unowned, "waiting"), else_=Watcher.state)


def _why_unsure(row: Watcher, shown: str, known: Liveness, now: datetime) -> str | None:
    """Return why the stored state may be outdated, or why another state is shown; None if the stored state is right."""
    if row.owner is None or not (known.is_silent or shown != row.state):
        return None
    return why_silent(row.owner, known, now)


async def _positions_of(
    session: AsyncSession, watchers: Sequence[Watcher]
) -> dict[int, list[PositionView]]:
    """Return the backlogs of these watchers, by watcher id. A running watcher has none, because it has caught up."""
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
