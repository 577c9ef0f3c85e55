"""All lists that the API reads in pages. The commands call the functions of the lists directly, without pages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, Final, TypeVar

from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.errors import CursorRefused
from triggerer.store.audit.listing import count_audit, list_audit
from triggerer.store.backfills.listing import count_backfills, list_backfills
from triggerer.store.dags.listing import count_assets, count_dags, list_assets, list_dags
from triggerer.store.events.listing import count_asset_events, list_asset_events
from triggerer.store.events.queued import count_queued_events, list_queued_events
from triggerer.store.listing.paging import Key, Listing
from triggerer.store.listing.views import (
    AssetEventView,
    AssetView,
    AuditView,
    BackfillView,
    DagView,
    ParkedView,
    QueuedEventView,
    RunView,
    StreamView,
    TaskRunView,
    WatcherView,
)
from triggerer.store.runs.listing import (
    count_runs,
    count_task_runs,
    list_keyed_runs,
    list_task_runs,
)
from triggerer.store.streams.listing import count_streams, list_streams
from triggerer.store.watchers.listing import count_watchers, list_watchers
from triggerer.store.watchers.parked_listing import count_parked, list_parked

_View = TypeVar("_View")


def _by_one(
    read: Callable[..., Awaitable[list[_View]]], key_of: Callable[[_View], Any], kind: type
) -> Callable[..., Awaitable[list[tuple[Key, _View]]]]:
    """Return a function that reads a page of a list, for a list that is sorted by one value.

    Args:
        read: The function that reads the list.
        key_of: Returns the value by which a row is sorted.
        kind: The type of that value.
    """

    async def rows(
        session: AsyncSession, *, limit: int, after: Key | None, **filters: Any
    ) -> list[tuple[Key, _View]]:
        start = None if after is None else _checked(after, kind)[0]
        found = await read(session, limit=limit, after=start, **filters)
        return [((key_of(view),), view) for view in found]

    return rows


def _by_several(
    read: Callable[..., Awaitable[list[_View]]], key_of: Callable[[_View], Key], *kinds: type
) -> Callable[..., Awaitable[list[tuple[Key, _View]]]]:
    """Return a `Listing.read` for a list that is sorted by several values. `_by_one` explains the arguments."""

    async def rows(
        session: AsyncSession, *, limit: int, after: Key | None, **filters: Any
    ) -> list[tuple[Key, _View]]:
        start = None if after is None else tuple(_checked(after, *kinds))
        found = await read(session, limit=limit, after=start, **filters)
        return [(key_of(view), view) for view in found]

    return rows


async def _runs(
    session: AsyncSession, *, limit: int, after: Key | None, **filters: Any
) -> list[tuple[Key, RunView]]:
    start = None if after is None else _checked(after, int)[0]
    found = await list_keyed_runs(session, limit=limit, after=start, with_events=True, **filters)
    return [((pk,), view) for pk, view in found]


async def _tasks(
    session: AsyncSession, *, limit: int, after: Key | None, dag: str, run_id: str
) -> list[tuple[Key, TaskRunView]]:
    start = None
    if after is not None:
        began, task_id = _checked(after, str, str)
        try:
            start = (datetime.fromisoformat(began) if began else None, task_id)
        except ValueError as error:
            raise CursorRefused("the cursor is malformed") from error
    found = await list_task_runs(session, dag, run_id, limit=limit, after=start)
    return [
        ((view.started_at.isoformat() if view.started_at else "", view.task_id), view)
        for view in found
    ]


def _checked(key: Key, *kinds: type) -> Key:
    """Return the key of a cursor after checking its types, because clients may send any string as a cursor.

    Raises:
        CursorRefused: The key does not have these types.
    """
    if (
        not isinstance(key, list)
        or len(key) != len(kinds)
        or not all(type(value) is kind for value, kind in zip(key, kinds, strict=True))
        or any(isinstance(value, int) and abs(value) >= 2**63 for value in key)
        or any(isinstance(value, str) and "\0" in value for value in key)
    ):
        raise CursorRefused("the cursor is malformed")
    return key


ASSETS: Final[Listing[AssetView]] = Listing(
    "assets", _by_one(list_assets, lambda view: view.name, str), count_assets
)
ASSET_EVENTS: Final[Listing[AssetEventView]] = Listing(
    "asset_events", _by_one(list_asset_events, lambda view: view.id, int), count_asset_events
)
"""Asset events, newest first. `triggerer.store.events.following` is for clients that wait for new events."""
DAGS: Final[Listing[DagView]] = Listing(
    "dags", _by_one(list_dags, lambda view: view.dag_id, str), count_dags
)
RUNS: Final[Listing[RunView]] = Listing("runs", _runs, count_runs)
TASKS: Final[Listing[TaskRunView]] = Listing("tasks", _tasks, count_task_runs)
"""The tasks of one run. The filters `dag` and `run_id` must both be given."""
WATCHERS: Final[Listing[WatcherView]] = Listing(
    "watchers",
    _by_several(list_watchers, lambda view: (view.asset_name, view.name), str, str),
    count_watchers,
)
PARKED: Final[Listing[ParkedView]] = Listing(
    "parked", _by_one(list_parked, lambda view: view.id, int), count_parked
)
QUEUED: Final[Listing[QueuedEventView]] = Listing(
    "queued",
    _by_several(
        list_queued_events,
        lambda view: (view.dag_id, view.asset_event_id, view.partition_key or ""),
        str,
        int,
        str,
    ),
    count_queued_events,
)
BACKFILLS: Final[Listing[BackfillView]] = Listing(
    "backfills", _by_one(list_backfills, lambda view: view.id, int), count_backfills
)
AUDIT: Final[Listing[AuditView]] = Listing(
    "audit", _by_one(list_audit, lambda view: view.id, int), count_audit
)
STREAMS: Final[Listing[StreamView]] = Listing(
    "streams", _by_one(list_streams, lambda view: view.id, str), count_streams
)
LISTINGS: Final = (
    ASSETS,
    ASSET_EVENTS,
    DAGS,
    RUNS,
    TASKS,
    WATCHERS,
    PARKED,
    QUEUED,
    BACKFILLS,
    AUDIT,
    STREAMS,
)
