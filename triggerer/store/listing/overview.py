"""Reads the first page of the web interface: the problems that need a person, and a few figures."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Select, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.watchers.parked import ParkedState
from triggerer.observability.redaction import redact_text
from triggerer.store.audit.cleanings import read_state
from triggerer.store.dags.listing import list_broken_files
from triggerer.store.database.transactions import database_now
from triggerer.store.events.listing import list_asset_events
from triggerer.store.listing.paging import Count, count_rows
from triggerer.store.listing.views import DagFileView, RunView, WatcherView
from triggerer.store.runs.listing import list_chosen_runs
from triggerer.store.runs.state_conditions import ACTIVE, UNSUCCESSFUL
from triggerer.store.schema.models import (
    Asset,
    Dag,
    DagRun,
    ParkedMessage,
    Stream,
    Trigger,
    Watcher,
)
from triggerer.store.streams.liveness import known_instances
from triggerer.store.watchers.listing import list_watchers

_SHOWN: Final = 20
_RECENT: Final = timedelta(hours=24)
_LONG_WAIT: Final = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class ParkedOf:
    """The parked messages of one watcher."""

    asset_name: str
    watcher: str
    count: int
    first_at: datetime
    """When the first of these messages was parked."""
    last_at: datetime
    """When the last of these messages was parked."""
    error: str | None
    """The error of the message that was parked last."""


@dataclass(frozen=True, slots=True)
class Overview:
    """The problems that may need a person, and some figures.

    Each list except `missing_instances` has at most 20 entries.
    """

    at: datetime
    """The database's time."""
    broken_files: list[DagFileView]
    watchers: list[WatcherView]
    """Watchers that are failing, catching up or waiting, in this order."""
    watcher_states: dict[str, int]
    parked: list[ParkedOf]
    """Parked messages by watcher. The watcher with the most parked messages comes first."""
    failed_runs: list[RunView]
    """The newest failed runs of the last 24 hours."""
    failed_run_count: Count
    waiting_runs: list[RunView]
    """Runs that have been queued for more than five minutes, oldest first."""
    missing_instances: list[str]
    """Instances whose lease is not over, but that missed a heartbeat or whose process is gone."""
    cleaning_error: str | None
    """The error of the last cleaning of the database. None: the cleaning succeeded, or there was none."""
    cleaning_failed_at: datetime | None
    run_states: dict[str, int]
    """The numbers of queued and of running runs, by state."""
    dags: int
    paused_dags: int
    assets: int
    streams: int
    last_event_at: datetime | None


async def read_overview(session: AsyncSession) -> Overview:
    """Return the overview."""
    now = await database_now(session)
    states = await _watcher_states(session, now)
    failed = (UNSUCCESSFUL, DagRun.state == "failed", DagRun.ended_at > now - _RECENT)
    failed_ids = select(DagRun.id).where(*failed).order_by(DagRun.id.desc())
    ailing = [
        one
        for state in ("failing", "catching_up", "waiting")
        if states.get(state)
        for one in await list_watchers(session, state=state, limit=_SHOWN)
    ]
    last = await list_asset_events(session, limit=1)
    dags = await _grouped(
        session,
        select(Dag.is_paused, func.count()).where(Dag.is_stale.is_(False)).group_by(Dag.is_paused),
    )
    instances = await known_instances(session)
    cleaning = await read_state(session)
    cleaning_error = None if cleaning is None else cleaning.error
    return Overview(
        at=now,
        broken_files=(await list_broken_files(session))[:_SHOWN],
        watchers=ailing[:_SHOWN],
        watcher_states=states,
        parked=await _parked(session),
        failed_runs=await list_chosen_runs(session, failed_ids.limit(_SHOWN)),
        failed_run_count=await count_rows(session, failed_ids),
        waiting_runs=await list_chosen_runs(
            session,
            select(DagRun.id)
            .where(ACTIVE, DagRun.state == "queued", DagRun.queued_at < now - _LONG_WAIT)
            .order_by(DagRun.queued_at, DagRun.id)
            .limit(_SHOWN),
        ),
        missing_instances=sorted(
            owner for owner, life in instances.items() if life.is_silent and not life.is_over
        ),
        cleaning_error=cleaning_error and redact_text(cleaning_error),
        cleaning_failed_at=cleaning.failed_at if cleaning and cleaning_error else None,
        run_states=await _grouped(
            session, select(DagRun.state, func.count()).where(ACTIVE).group_by(DagRun.state)
        ),
        dags=sum(dags.values()),
        paused_dags=dags.get(True, 0),
        assets=int(await session.scalar(select(func.count()).select_from(Asset)) or 0),
        streams=int(
            await session.scalar(select(func.count(Trigger.stream_digest.distinct()))) or 0
        ),
        last_event_at=last[0].timestamp if last else None,
    )


async def _watcher_states(session: AsyncSession, now: datetime) -> dict[str, int]:
    unowned = or_(Stream.owner.is_(None), Stream.expires_at <= now)
    query = (
        select(Watcher.state, unowned, func.count())
        .join(Trigger, Trigger.id == Watcher.trigger_id)
        .join(Stream, Stream.digest == Trigger.stream_digest)
        .group_by(Watcher.state, unowned)
    )
    found: dict[str, int] = {}
    for state, is_unowned, count in await session.execute(query):
        shown = "waiting" if is_unowned else state
        found[shown] = found.get(shown, 0) + count
    return found


async def _parked(session: AsyncSession) -> list[ParkedOf]:
    query = (
        select(
            Asset.name,
            Watcher.name,
            func.count(),
            func.min(ParkedMessage.parked_at),
            func.max(ParkedMessage.parked_at),
            func.max(ParkedMessage.id),
        )
        .select_from(ParkedMessage)
        .join(Watcher, Watcher.id == ParkedMessage.watcher_id)
        .join(Asset, Asset.id == Watcher.asset_id)
        .where(ParkedMessage.state == ParkedState.SET_ASIDE)
        .group_by(Asset.name, Watcher.name)
        .order_by(func.count().desc())
        .limit(_SHOWN)
    )
    rows = (await session.execute(query)).all()
    newest = [row[5] for row in rows]
    errors = dict(
        (
            await session.execute(
                select(ParkedMessage.id, ParkedMessage.error).where(ParkedMessage.id.in_(newest))
            )
        ).all()
    )
    return [
        ParkedOf(asset, name, count, first, last, redact_text(errors.get(newest_id) or "") or None)
        for asset, name, count, first, last, newest_id in rows
    ]


async def _grouped(session: AsyncSession, query: Select[*tuple[Any, ...]]) -> dict[Any, int]:
    return dict((await session.execute(query)).all())
