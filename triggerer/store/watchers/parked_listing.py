"""Lists stored and parked messages, and carries out an operator's decisions: to replay or to discard messages."""

from __future__ import annotations

import base64
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Select, func, select, true, update
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.watchers.parked import ParkedState
from triggerer.errors import TriggererError, UnknownMessage, UnknownWatcher
from triggerer.observability.redaction import redact_text
from triggerer.store.database.script import perform
from triggerer.store.database.wakeups.signals import Signal, announce
from triggerer.store.listing.filters import is_asset, is_waited_for, limited, some_of
from triggerer.store.listing.paging import Count, count_rows
from triggerer.store.listing.views import ParkedMessageView, ParkedView, view_of
from triggerer.store.schema.models import Asset, ParkedBody, ParkedMessage, Trigger, Watcher
from triggerer.store.watchers.parked import drop_parked

_Query = TypeVar("_Query", bound="Select[*tuple[Any, ...]]")


async def list_parked(
    session: AsyncSession,
    *,
    limit: int = 100,
    after: int | None = None,
    asset: str | None = None,
    dag: str | None = None,
    watcher: str | None = None,
    state: str | None = None,
) -> list[ParkedView]:
    """Return stored and parked messages, oldest first.

    Args:
        after: Only messages with higher ids than this.
        asset: Only messages for watchers of the asset with this name or URI.
        dag: Only messages for watchers of assets that the DAG's schedule names.
        watcher: Only messages for watchers with this name.
        state: `kept` (stored for a backlog) or `set_aside` (parked).
    """
    query = _of_watchers(select(ParkedMessage, Asset.name, Watcher.name))
    query = query.where(*_parked(asset, dag, watcher, state))
    if after is not None:
        query = query.where(ParkedMessage.id > after)
    rows = await session.execute(limited(query.order_by(ParkedMessage.id), limit))
    return [
        view_of(row, ParkedView, asset_name=asset_name, watcher=name, error=_redacted(row.error))
        for row, asset_name, name in rows
    ]


async def count_parked(
    session: AsyncSession,
    *,
    asset: str | None = None,
    dag: str | None = None,
    watcher: str | None = None,
    state: str | None = None,
) -> Count:
    """Count the messages that `list_parked` returns with these filters."""
    query = _of_watchers(select(ParkedMessage.id))
    return await count_rows(session, query.where(*_parked(asset, dag, watcher, state)))


def _parked(
    asset: str | None, dag: str | None, watcher: str | None, state: str | None
) -> list[ColumnElement[bool]]:
    wanted = [] if asset is None else [is_asset(asset)]
    if dag is not None:
        wanted.append(is_waited_for(Watcher.asset_id, dag))
    if watcher is not None:
        wanted.append(Watcher.name == watcher)
    if state is not None:
        wanted.append(ParkedMessage.state == state)
    return wanted


async def find_parked(session: AsyncSession, message_id: int) -> ParkedMessageView | None:
    """Return a message with its traceback and content, or None if there is no such message."""
    query = _of_watchers(select(ParkedMessage, Asset.name, Watcher.name, ParkedBody))
    query = query.join(ParkedBody, ParkedBody.id == ParkedMessage.body_id)
    found = (await session.execute(query.where(ParkedMessage.id == message_id))).one_or_none()
    if found is None:
        return None
    row, asset_name, name, body = found
    return view_of(
        row,
        ParkedMessageView,
        asset_name=asset_name,
        watcher=name,
        error=_redacted(row.error),
        traceback=_redacted(row.traceback),
        size_bytes=body.size_bytes,
        message=_readable(body.data),
    )


async def parked_body(session: AsyncSession, message_id: int) -> bytes | None:
    """Return the bytes of a stored or parked message, as its producer wrote them. None: there is no such message."""
    query = select(ParkedBody.data).join(ParkedMessage, ParkedMessage.body_id == ParkedBody.id)
    found: bytes | None = await session.scalar(query.where(ParkedMessage.id == message_id))
    return found


async def choose_parked(
    session: AsyncSession,
    *,
    ids: Collection[int] = (),
    asset: str | None = None,
    watcher: str | None = None,
) -> list[int]:
    """Return the ids of the chosen stored and parked messages, sorted.

    Args:
        ids: The messages to choose. Empty: all messages of the watcher or, if `asset` is None, all messages.
        asset: The name or URI of an asset. Only messages for the asset's watcher `watcher` are chosen.
    Raises:
        UnknownMessage: Some of `ids` do not exist.
        UnknownWatcher: The watcher never existed.
    """
    query = _of_watchers(select(ParkedMessage.id)).order_by(ParkedMessage.id)
    if asset is not None:
        query = query.where(is_asset(asset), Watcher.name == watcher)
    found = list[int]()
    for chosen in some_of(sorted(set(ids)), ParkedMessage.id) if ids else [true()]:
        found += await session.scalars(query.where(chosen))
    if asset is not None and not found:
        known = select(Watcher.id).join(Asset, Asset.id == Watcher.asset_id)
        if await session.scalar(known.where(is_asset(asset), Watcher.name == watcher)) is None:
            raise UnknownWatcher(asset, watcher or "")
    if missing := sorted(set(ids).difference(found)):
        raise UnknownMessage(missing)
    return found


async def find_undeclared(session: AsyncSession, ids: Sequence[int]) -> dict[int, str]:
    """Return, by message id, the undeclared watchers of these messages, as `asset/watcher`.

    A watcher is undeclared if no file declares it any longer. Messages of other watchers are left out.
    """
    query = _of_watchers(select(ParkedMessage.id, Asset.name + "/" + Watcher.name))
    query = query.where(Watcher.trigger_id.is_(None))
    found = dict[int, str]()
    for chosen in some_of(ids, ParkedMessage.id):
        found.update(dict((await session.execute(query.where(chosen))).all()))
    return found


async def replay_parked(session: AsyncSession, ids: Sequence[int]) -> int:
    """Hand the parked messages among `ids` to their watchers again. Return the number of these messages.

    Raises:
        TriggererError: One of the messages belongs to a watcher that no file declares any longer.
    """
    undeclared = set((await find_undeclared(session, ids)).values())
    if undeclared:
        raise TriggererError(
            f"no file declares {', '.join(sorted(undeclared))} any longer",
            hint="triggerer watchers parked replay --watcher ASSET/NAME replays another watcher's messages; discard"
            " --watcher ASSET/NAME deletes the messages of this one",
        )
    are_set_aside: ColumnElement[bool] = ParkedMessage.state == ParkedState.SET_ASIDE
    watchers = list[int]()
    for chosen in some_of(ids, ParkedMessage.id):
        watchers += await session.scalars(
            update(ParkedMessage)
            .where(chosen, are_set_aside)
            .values(state=ParkedState.KEPT, notified_at=None)
            .returning(ParkedMessage.watcher_id)
            .execution_options(synchronize_session=False)
        )
    digests = select(Trigger.stream_digest).join(Watcher, Watcher.trigger_id == Trigger.id)
    found = set[str]()
    for of_watchers in some_of(sorted(set(watchers)), Watcher.id):
        found.update(await session.scalars(digests.where(of_watchers)))
    if found:
        announce(session, Signal.STREAMS_CHANGED, *sorted(found))
    return len(watchers)


async def discard_parked(session: AsyncSession, ids: Sequence[int]) -> int:
    """Delete these messages. Return how many there were."""
    return await perform(session, drop_parked(ids))


async def count_set_aside(session: AsyncSession, watcher_ids: Sequence[int]) -> dict[int, int]:
    """Return the number of parked messages of each of these watchers, by watcher id. Zeros are left out."""
    query = (
        select(ParkedMessage.watcher_id, func.count())
        .where(ParkedMessage.state == ParkedState.SET_ASIDE)
        .group_by(ParkedMessage.watcher_id)
    )
    found: dict[int, int] = {}
    for chosen in some_of(watcher_ids, ParkedMessage.watcher_id):
        found.update(dict((await session.execute(query.where(chosen))).all()))
    return found


async def count_stored(
    session: AsyncSession, watcher_ids: Sequence[int]
) -> list[tuple[int, str, int, datetime]]:
    """Return rows (watcher id, lane, number of stored messages, when the first of them was stored)."""
    query = (
        select(
            ParkedMessage.watcher_id,
            ParkedMessage.lane,
            func.count(),
            func.min(ParkedMessage.parked_at),
        )
        .where(ParkedMessage.state == ParkedState.KEPT)
        .group_by(ParkedMessage.watcher_id, ParkedMessage.lane)
        .order_by(ParkedMessage.watcher_id, func.min(ParkedMessage.id))
    )
    found: list[tuple[int, str, int, datetime]] = []
    for chosen in some_of(watcher_ids, ParkedMessage.watcher_id):
        rows = await session.execute(query.where(chosen))
        found += [(watcher_id, lane, count, since) for watcher_id, lane, count, since in rows]
    return found


def _of_watchers(query: _Query) -> _Query:
    return (
        query.select_from(ParkedMessage)
        .join(Watcher, Watcher.id == ParkedMessage.watcher_id)
        .join(Asset, Asset.id == Watcher.asset_id)
    )


def _redacted(text: str | None) -> str | None:
    return None if text is None else redact_text(text)


def _readable(data: bytes) -> str:
    """Return the bytes as text, or as Base64 if they are not text or contain a NUL character."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = "\0"
    return base64.b64encode(data).decode() if "\0" in text else text
