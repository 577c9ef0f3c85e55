"""Finds occurrences that people were not notified of: failing watchers, parked messages and failed runs.

For watchers, this module compares the state with the last notification. For failed runs and parked messages, it
searches rows without `notified_at`. A cursor over ids would miss rows, because transactions do not commit in the order
of ids.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import select, text, true
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.notifications import QUIET, Event, LastNotification, Occurrence
from triggerer.store.schema.models import Asset, DagRun, ParkedMessage, Watcher

OLDEST: Final = timedelta(days=1)
"""A run that failed longer ago causes no notification: it may have failed before notifications were configured."""
_MOST_ROWS: Final = 5_000
"""The most runs, and the most parked messages, that one call of `find_occurrences` reads."""
_WORKS: Final = frozenset({"running", "catching_up"})
_UNTOLD_RUN: Final = text("dag_run.state = 'failed' AND dag_run.notified_at IS NULL")
_UNTOLD_MESSAGE: Final = text(
    "parked_message.state = 'set_aside' AND parked_message.notified_at IS NULL"
)
ToldBySubject = Mapping[tuple[str, str], LastNotification]


async def find_occurrences(
    session: AsyncSession, events: Collection[Event], told: ToldBySubject, now: datetime
) -> list[Occurrence]:
    """Return the occurrences of these events that people were not notified of, oldest first.

    Parked messages and failed runs are left out if the last notification about their watcher or DAG is younger than
    `QUIET`.

    Args:
        now: The database's time.
    """
    found: list[Occurrence] = []
    if Event.WATCHER_FAILING in events:
        found += await _watchers(session, told)
    if Event.PARKED in events:
        found += await _parked(session, told, now)
    if Event.RUN_FAILED in events:
        found += await _runs(session, told, now)
    return sorted(found, key=lambda one: one.since)


async def _watchers(session: AsyncSession, told: ToldBySubject) -> list[Occurrence]:
    """Return the failing watchers without a notification, and the watchers that work again after a notification."""
    event = Event.WATCHER_FAILING.value
    failing = {int(key[1]): one for key, one in told.items() if key[0] == event and one.is_failing}
    query = (
        select(Watcher.id, Asset.name, Watcher.name, Watcher.state, Watcher.updated_at)
        .add_columns(Watcher.error)
        .join(Asset, Asset.id == Watcher.asset_id)
        .where(Watcher.trigger_id.is_not(None))
    )
    rows = list(await session.execute(query.where(Watcher.state == "failing")))
    rows = [row for row in rows if row[0] not in failing]
    if failing:
        again = query.where(Watcher.id.in_(failing), Watcher.state.in_(_WORKS))
        rows += await session.execute(again)
    return [
        Occurrence(
            Event.WATCHER_FAILING,
            str(watcher_id),
            f"{asset}/{name}",
            since if state == "failing" else failing[watcher_id].since or since,
            error=error if state == "failing" else None,
            is_over=state != "failing",
        )
        for watcher_id, asset, name, state, since, error in rows
    ]


async def _parked(session: AsyncSession, told: ToldBySubject, now: datetime) -> list[Occurrence]:
    quiet = [int(one) for one in _quiet(told, Event.PARKED, now)]
    query = (
        select(ParkedMessage.id, Watcher.id, Asset.name, Watcher.name, ParkedMessage.parked_at)
        .add_columns(ParkedMessage.error)
        .join(Watcher, Watcher.id == ParkedMessage.watcher_id)
        .join(Asset, Asset.id == Watcher.asset_id)
        .where(_UNTOLD_MESSAGE, Watcher.id.not_in(quiet) if quiet else true())
        .order_by(ParkedMessage.watcher_id)
        .limit(_MOST_ROWS)
    )
    grouped: dict[int, list[tuple[int, str, datetime, str | None]]] = {}
    for pk, watcher_id, asset, name, parked_at, error in await session.execute(query):
        grouped.setdefault(watcher_id, []).append((pk, f"{asset}/{name}", parked_at, error))
    return [
        Occurrence(
            Event.PARKED,
            str(watcher_id),
            rows[0][1],
            min(parked_at for _, _, parked_at, _ in rows),
            count=len(rows),
            error=max(rows)[3],
            rows=tuple(pk for pk, *_ in rows),
        )
        for watcher_id, rows in grouped.items()
    ]


async def _runs(session: AsyncSession, told: ToldBySubject, now: datetime) -> list[Occurrence]:
    quiet = _quiet(told, Event.RUN_FAILED, now)
    query = (
        select(DagRun.id, DagRun.dag_id, DagRun.run_id, DagRun.ended_at)
        .where(_UNTOLD_RUN, DagRun.ended_at > now - OLDEST)
        .where(DagRun.dag_id.not_in(quiet) if quiet else true())
        .order_by(DagRun.ended_at)
        .limit(_MOST_ROWS)
    )
    grouped: dict[str, list[tuple[datetime, int, str]]] = {}
    for pk, dag_id, run_id, ended_at in await session.execute(query):
        assert ended_at is not None
        grouped.setdefault(dag_id, []).append((ended_at, pk, run_id))
    last = {max(rows)[1]: dag_id for dag_id, rows in grouped.items()}
    errors = {}
    if last:
        texts = select(DagRun.id, DagRun.error).where(DagRun.id.in_(last))
        errors = {last[pk]: error for pk, error in await session.execute(texts)}
    return [
        Occurrence(
            Event.RUN_FAILED,
            dag_id,
            dag_id,
            min(rows)[0],
            count=len(rows),
            error=errors.get(dag_id),
            run_id=max(rows)[2],
            rows=tuple(pk for _, pk, _ in rows),
        )
        for dag_id, rows in grouped.items()
    ]


def _quiet(told: ToldBySubject, event: Event, now: datetime) -> list[str]:
    """Return the objects whose last notification is younger than `QUIET`.

    Queries leave these objects out, so that other objects fit into `_MOST_ROWS`.
    """
    return [
        subject
        for (kind, subject), one in told.items()
        if kind == event.value and now - one.at < QUIET
    ]
