"""Routes that list and show watchers and shared streams, and that start replays."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated, Final, Literal

import anyio
from litestar import Router
from litestar.params import JSONBody, QueryParameter
from msgspec import Struct

from triggerer.api.context import ApiContext
from triggerer.api.gate import part
from triggerer.api.paging import Counted, Cursor, Limit, Page, page_of
from triggerer.api.parameters import Api, AssetFilter, Caller, DagFilter, InPath
from triggerer.api.routing import creates, reads
from triggerer.errors import (
    BadRequest,
    NothingThere,
    ServerBusy,
    TransientStoreError,
    UnknownWatcher,
)
from triggerer.operations.replaying import replay_watcher
from triggerer.store.listing.pages import STREAMS, WATCHERS
from triggerer.store.listing.views import StreamView, WatcherView
from triggerer.store.streams.listing import list_streams
from triggerer.store.streams.reports import ask_for_reports
from triggerer.store.watchers.listing import list_watchers
from triggerer.store.watchers.replays import ReplayView

_ASK_S: Final = 0.25
"""How long a request waits until the store has recorded that a user reads the instances' reports."""


class Replay(Struct, forbid_unknown_fields=True, frozen=True):
    """The position at which a replay starts."""

    start: str
    """`earliest`, or an instant in ISO 8601: the replay reads the messages that were published from then on."""
    again: bool = False
    """True: also make events for messages that have events already."""


@reads("/watchers")
async def watchers(
    api: Api,
    limit: Limit = 100,
    cursor: Cursor = None,
    counted: Counted = False,
    asset: AssetFilter = None,
    dag: DagFilter = None,
    watcher_state: Annotated[
        Literal["waiting", "running", "failing", "catching_up"] | None,
        QueryParameter(name="state", description="Only watchers in this state."),
    ] = None,
    stream_id: Annotated[
        str | None, QueryParameter(name="stream", description="Only watchers of this stream (id).")
    ] = None,
) -> Page[WatcherView]:
    """List the watchers, sorted by asset and name. `dag`: only watchers of assets for which the DAG waits."""
    return await page_of(
        api,
        WATCHERS,
        limit=limit,
        cursor=cursor,
        counted=counted,
        known={"dag": dag, "asset": asset},
        asset=asset,
        dag=dag,
        state=watcher_state,
        stream=stream_id,
    )


@reads("/watchers/{asset:str}/{name:str}")
async def watcher(api: Api, asset: InPath, name: InPath) -> WatcherView:
    """Show a watcher with its backlogs and its error."""
    async with api.use.reading() as session:
        found = await list_watchers(session, asset=part(asset), name=part(name), limit=1)
        if not found:
            raise UnknownWatcher(part(asset), part(name))
    return found[0]


@creates("/watchers/{asset:str}/{name:str}/replay")
async def replay(
    api: Api, access: Caller, asset: InPath, name: InPath, data: JSONBody[Replay]
) -> ReplayView:
    """Let a watcher read its log again from an earlier position."""
    start = None if data.start == "earliest" else _instant(data.start)
    async with api.use.changing() as session:
        return await replay_watcher(
            session, access.actor(), part(asset), part(name), start=start, again=data.again
        )


def _instant(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
        if found.tzinfo is None:
            raise ValueError
        return found.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise BadRequest(
            f"start is neither 'earliest' nor an instant with a time zone: {text!r}",
            hint="for example 2026-11-24T12:00:00Z",
        ) from error


async def _ask_for_reports(api: ApiContext) -> None:
    """Ask the instances for newer reports. If other changes keep the database busy, show the reports that exist."""
    with suppress(ServerBusy, TransientStoreError), anyio.move_on_after(_ASK_S):
        await ask_for_reports(api.use.reading, api.use.changing)


@reads("/streams")
async def streams(
    api: Api, limit: Limit = 100, cursor: Cursor = None, counted: Counted = False
) -> Page[StreamView]:
    """List the shared streams with their owners and lanes."""
    await _ask_for_reports(api)
    return await page_of(api, STREAMS, limit=limit, cursor=cursor, counted=counted)


@reads("/streams/{digest:str}")
async def stream(api: Api, digest: InPath) -> StreamView:
    """Show a stream."""
    await _ask_for_reports(api)
    async with api.use.reading() as session:
        found = await list_streams(session, digest=part(digest), limit=1)
    if not found:
        raise NothingThere(
            f"there is no stream {part(digest)!r}", hint="see: triggerer watchers list"
        )
    return found[0]


ROUTER = Router(
    "/",
    route_handlers=[watchers, watcher, replay, streams, stream],
    tags=["Streams and watchers"],
)
