"""Reads the values of metrics that come from the database."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import Select, case, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.watchers.parked import ParkedBounds
from triggerer.observability.metrics import table
from triggerer.observability.metrics.exposition import Sample
from triggerer.observability.metrics.instruments import Metric
from triggerer.store.audit.cleanings import read_cleaned, read_state
from triggerer.store.dags.listing import DAG_STATES, list_broken_files
from triggerer.store.database.transactions import database_now
from triggerer.store.runs.state_conditions import ACTIVE
from triggerer.store.schema.models import (
    Asset,
    AssetEvent,
    Dag,
    DagRun,
    ParkedBody,
    ParkedMessage,
    Stream,
    Trigger,
    Watcher,
    WatcherPosition,
)
from triggerer.store.streams.listing import list_instances

_MOST_WATCHERS: Final = 50


async def read_gauges(session: AsyncSession, bounds: ParkedBounds) -> list[Sample]:
    """Return the metrics whose values come from the database, such as the numbers of watchers and runs by state.

    Args:
        bounds: The configured limits on parked messages. Gauges show how far these limits are used up.
    """
    now = await database_now(session)
    samples = [Sample(table.CLOCK_SKEW, (datetime.now(UTC) - now).total_seconds())]
    samples += await _watchers(session, now)
    samples += await _parked(session, bounds)
    samples += await _grouped(
        session,
        table.RUNS_ACTIVE,
        select(DagRun.state, func.count()).where(ACTIVE).group_by(DagRun.state),
        ("queued", "running"),
    )
    for state, condition in DAG_STATES.items():
        number = await session.scalar(select(func.count()).select_from(Dag).where(condition))
        samples.append(Sample(table.DAGS, number or 0, (state,)))
    samples.append(Sample(table.DAG_FILES_BROKEN, len(await list_broken_files(session))))
    kinds = dict.fromkeys(("triggerer", "scheduler", "dag-processor", "executor", "api"), 0)
    for one in await list_instances(session):
        kinds[one.kind] = kinds.get(one.kind, 0) + (one.state == "running")
    samples += [Sample(table.INSTANCES, number, (kind,)) for kind, number in kinds.items()]
    oldest = await session.scalar(select(AssetEvent.timestamp).order_by(AssetEvent.id).limit(1))
    age = 0.0 if oldest is None else (now - oldest).total_seconds()
    samples.append(Sample(table.OLDEST_EVENT, max(age, 0.0)))
    samples += _samples(table.CLEANED_ROWS, await read_cleaned(session))
    cleaning = await read_state(session)
    ended_at = None if cleaning is None else cleaning.succeeded_at
    since = age if ended_at is None else (now - ended_at).total_seconds()
    samples.append(Sample(table.CLEAN_AGE, max(since, 0.0)))
    samples.append(Sample(table.CLEAN_FAILURES, 0 if cleaning is None else cleaning.failures))
    return samples


async def _watchers(session: AsyncSession, now: datetime) -> list[Sample]:
    is_unowned = or_(Stream.owner.is_(None), Stream.expires_at <= now)
    shown = case((is_unowned, "waiting"), else_=Watcher.state)
    hosted = (
        select(shown, func.count())
        .select_from(Watcher)
        .join(Trigger, Trigger.id == Watcher.trigger_id)
        .join(Stream, Stream.digest == Trigger.stream_digest)
        .group_by(shown)
    )
    states = ("running", "failing", "catching_up", "waiting")
    samples = await _grouped(session, table.WATCHERS, hosted, states)
    has_watchers = (
        select(Watcher.id).join(Trigger).where(Trigger.stream_digest == Stream.digest).exists()
    )
    unowned = select(func.count()).select_from(Stream).where(has_watchers, is_unowned)
    samples.append(Sample(table.STREAMS_UNOWNED, await session.scalar(unowned) or 0))
    failing = (
        select(Asset.name, Watcher.name, Watcher.updated_at)
        .join(Asset, Asset.id == Watcher.asset_id)
        .where(Watcher.state == "failing", Watcher.trigger_id.is_not(None))
        .order_by(Watcher.updated_at, Watcher.id)
        .limit(_MOST_WATCHERS)
    )
    for asset, watcher, since in await session.execute(failing):
        age = max((now - since).total_seconds(), 0.0)
        samples.append(Sample(table.WATCHER_FAILING, age, (asset, watcher)))
    samples += await _behind(session)
    return samples


async def _behind(session: AsyncSession) -> list[Sample]:
    """Return how many messages a watcher misses, for the 50 watchers that miss most."""
    found: dict[tuple[str, str], int] = {}
    positions = (
        select(Asset.name, Watcher.name, WatcherPosition.position, WatcherPosition.head)
        .join(Watcher, Watcher.id == WatcherPosition.watcher_id)
        .join(Asset, Asset.id == Watcher.asset_id)
        .where(Watcher.state != "running", WatcherPosition.head.is_not(None))
    )
    for asset, watcher, position, head in await session.execute(positions):
        left = max((head or 0) - position[1], 0)
        found[asset, watcher] = found.get((asset, watcher), 0) + left
    stored = (
        select(Asset.name, Watcher.name, func.count())
        .select_from(ParkedMessage)
        .join(Watcher, Watcher.id == ParkedMessage.watcher_id)
        .join(Asset, Asset.id == Watcher.asset_id)
        .where(ParkedMessage.state == "kept")
        .group_by(Asset.name, Watcher.name)
    )
    for asset, watcher, number in await session.execute(stored):
        found[asset, watcher] = found.get((asset, watcher), 0) + number
    worst = sorted(found.items(), key=lambda one: -one[1])[:_MOST_WATCHERS]
    return [Sample(table.WATCHER_BEHIND, number, labels) for labels, number in worst]


async def _parked(session: AsyncSession, bounds: ParkedBounds) -> list[Sample]:
    of_watchers = (
        select(
            ParkedMessage.watcher_id,
            ParkedMessage.state,
            func.count(),
            func.coalesce(func.sum(ParkedBody.size_bytes), 0),
        )
        .join(ParkedBody, ParkedBody.id == ParkedMessage.body_id)
        .group_by(ParkedMessage.watcher_id, ParkedMessage.state)
    )
    states = {"set_aside": 0, "kept": 0}
    of_watcher: dict[int, tuple[int, int]] = {}
    for watcher_id, state, number, size_bytes in await session.execute(of_watchers):
        states[state] = states.get(state, 0) + number
        messages, total = of_watcher.get(watcher_id, (0, 0))
        of_watcher[watcher_id] = messages + number, total + int(size_bytes)
    sizes = select(func.coalesce(func.sum(ParkedBody.size_bytes), 0))
    total_bytes = int(await session.scalar(sizes) or 0)
    ratios = [total_bytes / bounds.total_bytes]
    for messages, size_bytes in of_watcher.values():
        ratios += (messages / bounds.max_messages, size_bytes / bounds.max_bytes)
    return [
        *(Sample(table.PARKED, number, (state,)) for state, number in states.items()),
        Sample(table.PARKED_BYTES, total_bytes),
        Sample(table.PARKED_BOUND, max(ratios)),
    ]


async def _grouped(
    session: AsyncSession, metric: Metric, query: Select[*tuple[Any, ...]], labels: tuple[str, ...]
) -> list[Sample]:
    """Return a sample for each row (label, number) of the query, and a zero for each of `labels` without a row."""
    found = dict.fromkeys(labels, 0) | {row[0]: row[1] for row in await session.execute(query)}
    return list(_samples(metric, found))


def _samples(metric: Metric, found: dict[str, int]) -> Iterator[Sample]:
    for label, number in found.items():
        yield Sample(metric, number, (label,))
