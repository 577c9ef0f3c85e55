"""Reads asset events for the tasks of a run, page by page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import orjson
from sqlalchemy import (
    ColumnElement,
    Select,
    Text,
    cast,
    exists,
    func,
    select,
    type_coerce,
    union_all,
)
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

from triggerer.store.database.listed_ids import is_listed, is_postgres, plan_with_values
from triggerer.store.events.identities import (
    NAME,
    URI,
    Span,
    in_spans,
    spans_of,
    with_identity,
)
from triggerer.store.schema.models import (
    Asset,
    AssetAlias,
    AssetAliasMember,
    AssetEvent,
    DagPartitionEvent,
    QueuedAssetEvent,
    Watcher,
)

EventId = ColumnElement[int] | InstrumentedAttribute[int]

PAGE_CHARACTERS: Final = 4 * 2**20
"""A page ends once the `extra`s of its events have more than this number of characters together (4 Mi)."""
# The most events in memory beyond the end of a page.
_READ_AT_ONCE: Final = 200
# The most assets in a UNION ALL, which has a part for each asset. SQLite allows 500 parts.
_ASSETS_MERGED: Final = 100


@dataclass(frozen=True, slots=True)
class TriggeringAsset:
    """An asset with events among a run's triggering events."""

    name: str
    uri: str
    total: int
    """The number of these events."""
    last_id: int
    """The highest id of these events."""


@dataclass(frozen=True, slots=True)
class NamedAsset:
    """The asset with a given name."""

    name: str
    uri: str


@dataclass(frozen=True, slots=True)
class Page:
    """A request for one page of a sequence of events. The sequence is ordered by id.

    If the events are large, a page has fewer than `limit` events (`PAGE_CHARACTERS`). Only a page without events shows
    that the sequence has ended. A large `skip` takes time, because the database counts index entries one by one.
    """

    last_id: int
    """Events with a greater id are not part of the sequence."""
    newest_first: bool
    beyond: int | None
    """The page begins after the event with this id. None: it begins at the first event in the page's order."""
    skip: int
    """How many further events to skip at the beginning."""
    limit: int
    """The most events on the page."""


async def triggering_assets(session: AsyncSession, run_pk: int) -> list[TriggeringAsset]:
    """Return the assets of a run's triggering events, sorted by name, each with the number of its events."""
    entry = await _entries_of(session, run_pk)
    rows = await session.execute(
        select(Asset.name, Asset.uri, func.count(), func.max(entry.asset_event_id))
        .join(entry, entry.asset_id == Asset.id)
        .where(entry.run_pk == run_pk)
        .group_by(Asset.name, Asset.uri)
        .order_by(Asset.name)
    )
    return [TriggeringAsset(*row) for row in rows]


async def find_asset(session: AsyncSession, *, name: str) -> NamedAsset | None:
    """Return the asset with this name, or None."""
    row = (await session.execute(select(Asset.name, Asset.uri).where(Asset.name == name))).first()
    return None if row is None else NamedAsset(*row)


async def last_event(
    session: AsyncSession, *, uri: str | None = None, alias: str | None = None
) -> int:
    """Return the id of the newest event of an asset, or of the assets of an alias; 0 if there is none."""
    spans, newest = await _spans(session, uri, alias), 0
    for start in range(0, len(spans), _ASSETS_MERGED):
        # Ask for the maximum of each span separately: each costs one index look-up.
        each = union_all(
            *(
                select(func.max(AssetEvent.id).label("id")).where(span.condition())
                for span in spans[start : start + _ASSETS_MERGED]
            )
        ).subquery()
        newest = max(newest, await session.scalar(select(func.max(each.c.id))) or 0)
    return newest


async def count_events(
    session: AsyncSession, *, last_id: int, uri: str | None = None, alias: str | None = None
) -> int:
    """Return how many events the asset or the alias has, up to the id `last_id`. This is slow for many events."""
    counted = (
        select(func.count())
        .select_from(AssetEvent)
        .where(in_spans(await _spans(session, uri, alias)), AssetEvent.id <= last_id)
    )
    return await session.scalar(counted) or 0


async def page_of_asset(
    session: AsyncSession, page: Page, *, uri: str | None = None, alias: str | None = None
) -> list[dict[str, Any]]:
    """Return a page of the events of an asset, or of the assets of an alias.

    For an alias with more than 100 assets the query is slow. The database then sorts all events of these assets, from
    the beginning of the page on.
    """
    spans = await _spans(session, uri, alias)
    if not spans:
        return []
    # An index sorts the events of only one asset. So read the first events of each asset, and merge them.
    apart = [[one] for one in spans] if len(spans) <= _ASSETS_MERGED else [spans]
    firsts = [
        _in_order(select(AssetEvent.id).where(in_spans(some)), AssetEvent.id, page)
        .limit(page.skip + page.limit)
        .subquery()
        for some in apart
    ]
    merged = union_all(*(select(first.c.id) for first in firsts)).subquery().c.id
    return await _read(session, page, _in_order(select(merged), merged, page))


async def page_of_run(
    session: AsyncSession, page: Page, *, run_pk: int, uri: str
) -> list[dict[str, Any]]:
    """Return a page of a run's triggering events that belong to one asset."""
    ids, event_id = await ids_of_run(session, run_pk=run_pk, uri=uri)
    return await _read(session, page, _in_order(ids, event_id, page))


async def ids_of_asset(
    session: AsyncSession, *, uri: str | None = None, alias: str | None = None
) -> tuple[Select[int], EventId]:
    """Return a query for the event ids of an asset or an alias, and the column that holds these ids."""
    spans = await _spans(session, uri, alias)
    return select(AssetEvent.id).where(in_spans(spans)), AssetEvent.id


async def ids_of_run(
    session: AsyncSession, *, run_pk: int, uri: str
) -> tuple[Select[int], EventId]:
    """Return a query of the ids of a run's triggering events that belong to one asset, and the column of the ids."""
    entry = await _entries_of(session, run_pk)
    asset_id = select(Asset.id).where(Asset.uri == uri).scalar_subquery()
    ours = select(entry.asset_event_id).where(entry.run_pk == run_pk, entry.asset_id == asset_id)
    return ours, entry.asset_event_id


async def _entries_of(
    session: AsyncSession, run_pk: int
) -> type[QueuedAssetEvent] | type[DagPartitionEvent]:
    """Return the table that contains the run's events. For runs of partition keys, this is `dag_partition_event`."""
    keyed = exists().where(DagPartitionEvent.run_pk == run_pk)
    return DagPartitionEvent if await session.scalar(select(keyed)) else QueuedAssetEvent


async def _spans(session: AsyncSession, uri: str | None, alias: str | None) -> list[Span]:
    """Return the spans of the events that were recorded under a URI. For an alias: all events of each of its assets."""
    if alias is None:
        assert uri is not None
        return await spans_of(session, uri=uri)
    members = await session.scalars(
        select(AssetAliasMember.asset_id)
        .join(AssetAlias, AssetAlias.id == AssetAliasMember.alias_id)
        .where(AssetAlias.name == alias)
        .order_by(AssetAliasMember.asset_id)
    )
    return [Span(asset_id, 0, None) for asset_id in members]


def _in_order(query: Select[int], event_id: EventId, page: Page) -> Select[int]:
    """Restrict a query to the events from the beginning of the page on, and sort it in the page's order."""
    query = query.where(event_id <= page.last_id)
    if page.beyond is not None:
        query = query.where(event_id < page.beyond if page.newest_first else event_id > page.beyond)
    return query.order_by(event_id.desc() if page.newest_first else event_id)


def columns_of(
    session: AsyncSession,
    wanted: ColumnElement[bool],
    *,
    timestamp: ColumnElement[Any] | None = None,
) -> Select[*tuple[Any, ...]]:
    """Return a query of the events that meet `wanted`, with the columns of a page. `extra` is the last column.

    Args:
        timestamp: An expression to select instead of the timestamp. None: the timestamp itself.
    """
    # `extra` is selected as text. Decoding and encoding it for thousands of events would take longer than the query.
    as_text = cast if is_postgres(session) else type_coerce
    columns = select(
        AssetEvent.id,
        NAME.label("asset_name"),
        URI.label("asset_uri"),
        AssetEvent.timestamp if timestamp is None else timestamp.label("timestamp"),
        Watcher.name.label("source_watcher"),
        AssetEvent.source_dag_id.label("source_dag"),
        AssetEvent.source_run_id,
        AssetEvent.source_task_id.label("source_task"),
        AssetEvent.partition_key,
        as_text(AssetEvent.extra, Text).label("extra"),
    ).select_from(AssetEvent)
    return (
        with_identity(columns).outerjoin(Watcher, Watcher.id == AssetEvent.watcher_id).where(wanted)
    )


async def _read(session: AsyncSession, page: Page, ids: Select[int]) -> list[dict[str, Any]]:
    """Read the events of a page. `ids` is the sorted query of the sequence's ids.

    The ids are read first, then the events. In a join, PostgreSQL would compare each id with each event if its
    statistics still show an empty table.
    """
    wanted = list(await session.scalars(ids.limit(page.limit).offset(page.skip)))
    await plan_with_values(session)
    found: list[dict[str, Any]] = []
    characters, size = 0, _READ_AT_ONCE
    while wanted:
        some, wanted = wanted[:size], wanted[size:]
        rows = columns_of(session, is_listed(session, AssetEvent.id, some))
        rows = rows.order_by(AssetEvent.id.desc() if page.newest_first else AssetEvent.id)
        keys = rows.selected_columns.keys()
        result = await session.stream(rows, execution_options={"yield_per": _READ_AT_ONCE})
        async for part in result.partitions():
            for *fields, extra in part:
                found.append(dict(zip(keys, (*fields, orjson.Fragment(extra)), strict=True)))
                characters += len(extra)
                if characters > PAGE_CHARACTERS:
                    await result.close()
                    return found
        # From the average size of the events so far, compute how many events will fill the rest of the page.
        expected = len(found) * (PAGE_CHARACTERS - characters) // max(characters, 1)
        size = max(_READ_AT_ONCE, expected)
    return found
