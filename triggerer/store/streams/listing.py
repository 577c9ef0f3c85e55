"""Lists streams and instances for the API."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from sqlalchemy import ColumnElement, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.live_state import StreamHistory, StreamLive
from triggerer.observability.redaction import redact_text
from triggerer.processes.instance_ids import host_and_pid
from triggerer.store.database.transactions import database_now
from triggerer.store.listing.filters import limited, some_of
from triggerer.store.listing.paging import Count, count_rows
from triggerer.store.listing.views import (
    InstanceView,
    LaneView,
    StreamHistoryView,
    StreamView,
)
from triggerer.store.schema.models import Instance, Stream, Trigger, Watcher
from triggerer.store.streams.liveness import GONE, known_instances
from triggerer.store.streams.reports import Report, load_reports


async def list_streams(
    session: AsyncSession, *, limit: int = 100, after: str | None = None, digest: str | None = None
) -> list[StreamView]:
    """Return the streams that have watchers, sorted by digest.

    Args:
        after: Only streams with a greater digest than this.
    """
    now = await database_now(session)
    query = select(Stream).where(_has_watchers()).order_by(Stream.digest)
    if after is not None:
        query = query.where(Stream.digest > after)
    if digest is not None:
        query = query.where(Stream.digest == digest)
    rows = list(await session.scalars(limited(query, limit)))
    states = await _watcher_states(session, [row.digest for row in rows], now)
    reports = await load_reports(session, {row.owner for row in rows if row.owner is not None})
    return [
        _stream_view(row, states.get(row.digest, {}), reports.get(row.owner or ""), now)
        for row in rows
    ]


async def count_streams(session: AsyncSession) -> Count:
    """Count the streams that have watchers."""
    return await count_rows(session, select(Stream.digest).where(_has_watchers()))


def _has_watchers() -> ColumnElement[bool]:
    return select(Watcher.id).join(Trigger).where(Trigger.stream_digest == Stream.digest).exists()


def _stream_view(
    row: Stream, watchers: dict[str, int], report: Report | None, now: datetime
) -> StreamView:
    is_owned = row.owner is not None and row.expires_at is not None and row.expires_at > now
    live = None if report is None else report.streams.get(row.digest)
    view = StreamView(
        id=row.digest,
        stream=redact_text(row.key),
        owner=row.owner if is_owned else None,
        epoch=row.epoch,
        lease_ends_at=row.expires_at if is_owned else None,
        watchers=watchers,
        reported_at=None,
    )
    # Ignore a report about an earlier lease: the owner may have lost the lease since, and claimed the stream again.
    if report is None or live is None or not is_owned or live.epoch != row.epoch:
        return view
    return _with_report(replace(view, reported_at=report.reported_at), live)


def _with_report(view: StreamView, live: StreamLive) -> StreamView:
    reasons = {
        pause.reason: pause.reason.replace("_", " ") + (f": {pause.detail}" if pause.detail else "")
        for pause in live.paused
    }
    return replace(
        view,
        lag=live.lag_messages,
        lag_seconds=live.lag_seconds,
        outstanding=live.outstanding,
        outstanding_bytes=live.outstanding_bytes,
        consumed=live.consumed,
        advanced=live.advanced,
        rejected=live.rejected,
        failed=live.failed,
        restarts=live.restarts,
        behind=live.behind,
        paused="; ".join(reasons.values()) or None,
        paused_reasons=list(reasons),
        lane_count=live.lane_count,
        lanes=[
            LaneView(
                lane=lane.lane,
                lag=lane.lag_messages,
                lag_seconds=lane.seconds,
                outstanding=lane.outstanding,
                paused=lane.standing or ("full" if lane.is_full else None),
            )
            for lane in live.lanes
        ],
        history=None if live.history is None else _history_view(live.history),
    )


def _history_view(history: StreamHistory) -> StreamHistoryView:
    newest = datetime.fromtimestamp(history.newest, UTC)
    since = newest - timedelta(minutes=len(history.lag) - 1)
    return StreamHistoryView(since, list(history.lag), list(history.consumed))


async def _watcher_states(
    session: AsyncSession, digests: list[str], now: datetime
) -> dict[str, dict[str, int]]:
    """Return the number of watchers by stream and state. If a stream has no owner, its watchers count as waiting."""
    found: dict[str, dict[str, int]] = {}
    unowned = or_(Stream.owner.is_(None), Stream.expires_at <= now)
    query = (
        select(Trigger.stream_digest, Watcher.state, unowned, func.count())
        .join(Watcher, Watcher.trigger_id == Trigger.id)
        .join(Stream, Stream.digest == Trigger.stream_digest)
        .group_by(Trigger.stream_digest, Watcher.state, unowned)
    )
    for chosen in some_of(digests, Trigger.stream_digest):
        for digest, state, is_unowned, count in await session.execute(query.where(chosen)):
            counts = found.setdefault(digest, {})
            shown = "waiting" if is_unowned else state
            counts[shown] = counts.get(shown, 0) + count
    return found


async def list_instances(session: AsyncSession) -> list[InstanceView]:
    """Return the known instances of the service, sorted by kind and by start."""
    known = await known_instances(session)
    rows = await session.scalars(select(Instance).order_by(Instance.kind, Instance.started_at))
    return [
        InstanceView(
            id=row.id,
            kind=row.kind,
            host=host_and_pid(row.id)[0],
            pid=host_and_pid(row.id)[1],
            release=row.release,
            state="gone" if life.is_over else "silent" if life.is_silent else "running",
            started_at=row.started_at,
            heartbeat_at=life.seen_at,
            lease_ends_at=life.lease_ends_at,
        )
        for row in rows
        for life in [known.get(row.id, GONE)]
    ]
