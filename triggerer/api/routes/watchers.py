"""Watchers, their parked messages, and their streams."""

from __future__ import annotations

from typing import Annotated, Literal

from litestar import Response, Router
from litestar.params import Parameter

from triggerer.api.gate import part
from triggerer.api.hiding import without_payloads
from triggerer.api.paging import Cursor, Limit, Page
from triggerer.api.parameters import Api, AssetFilter, Caller, DagFilter
from triggerer.api.routing import reads
from triggerer.errors import NothingThere, UnknownWatcher
from triggerer.store.listing.unknown import refuse_unknown
from triggerer.store.listing.views import ParkedMessageView, ParkedView, StreamView, WatcherView
from triggerer.store.streams.listing import list_streams
from triggerer.store.streams.reports import ask_for_reports
from triggerer.store.watchers.listing import list_watchers
from triggerer.store.watchers.parked_listing import find_parked, list_parked, parked_body


@reads("/watchers")
async def watchers(
    api: Api,
    limit: Limit = 100,
    cursor: Cursor = None,
    asset: AssetFilter = None,
    dag: DagFilter = None,
    watcher_state: Annotated[
        Literal["waiting", "running", "failing", "catching_up"] | None,
        Parameter(query="state", description="Only watchers in this state."),
    ] = None,
) -> Page[WatcherView]:
    """List the watchers by asset and name. `dag`: only watchers of assets that the DAG waits for."""
    async with api.use.reading() as session:
        found = await list_watchers(session, limit=limit, asset=asset, dag=dag, state=watcher_state)
        if not found:
            await refuse_unknown(session, dag=dag, asset=asset)
    return Page(found, None)


@reads("/watchers/{asset:str}/{name:str}")
async def watcher(api: Api, asset: str, name: str) -> WatcherView:
    """Show a watcher with its backlogs and its error."""
    async with api.use.reading() as session:
        found = await list_watchers(session, asset=part(asset), name=part(name), limit=1)
        if not found:
            raise UnknownWatcher(part(asset), part(name))
    return found[0]


@reads("/parked")
async def parked(
    api: Api,
    limit: Limit = 100,
    cursor: Cursor = None,
    asset: AssetFilter = None,
    dag: DagFilter = None,
    watcher_name: Annotated[
        str | None, Parameter(query="watcher", description="Only of watchers with this name.")
    ] = None,
    parked_state: Annotated[
        Literal["kept", "set_aside"] | None,
        Parameter(
            query="state", description="kept: it will be delivered; set_aside: a person decides."
        ),
    ] = None,
) -> Page[ParkedView]:
    """List stored and parked messages in the order of storing."""
    async with api.use.reading() as session:
        found = await list_parked(
            session, limit=limit, asset=asset, dag=dag, watcher=watcher_name, state=parked_state
        )
        if not found:
            await refuse_unknown(session, dag=dag, asset=asset, watcher=watcher_name)
    return Page(found, None)


@reads("/parked/{message_id:str}")
async def parked_message(api: Api, access: Caller, message_id: str) -> ParkedMessageView:
    """Show a parked message with its traceback and content."""
    number = parked_number(message_id)
    async with api.use.reading() as session:
        found = await find_parked(session, number)
    if found is None:
        raise no_message(message_id)
    return without_payloads(access, found)


@reads(
    "/parked/{message_id:str}/body",
    media_type="application/octet-stream",
)
async def parked_message_body(api: Api, access: Caller, message_id: str) -> Response[bytes]:
    """Download the content of a parked message, as its producer dumped it."""
    access.require_payloads()
    number = parked_number(message_id)
    async with api.use.reading() as session:
        body = await parked_body(session, number)
    if body is None:
        raise no_message(message_id)
    headers = {"Content-Disposition": f'attachment; filename="parked-{number}.bin"'}
    return Response(body, media_type="application/octet-stream", headers=headers)


def parked_number(message_id: str) -> int:
    """Return the number of a parked message in a path."""
    if not message_id.isascii() or not message_id.isdecimal() or len(message_id) > 18:
        raise no_message(message_id)
    return int(message_id)


def no_message(message_id: str) -> NothingThere:
    """Return the error for a message that is not parked, or no longer."""
    return NothingThere(
        f"no message {part(message_id)!r} is parked", hint="triggerer watchers parked list"
    )


@reads("/streams")
async def streams(api: Api, limit: Limit = 100, cursor: Cursor = None) -> Page[StreamView]:
    """List the shared streams with their owners and lanes."""
    await ask_for_reports(api.use.reading, api.use.changing)
    async with api.use.reading() as session:
        return Page(await list_streams(session, limit=limit), None)


@reads("/streams/{digest:str}")
async def stream(api: Api, digest: str) -> StreamView:
    """Show a stream."""
    await ask_for_reports(api.use.reading, api.use.changing)
    async with api.use.reading() as session:
        found = await list_streams(session, digest=part(digest), limit=1)
    if not found:
        raise NothingThere(
            f"there is no stream {part(digest)!r}", hint="watchers list shows each watcher's stream"
        )
    return found[0]


ROUTER = Router(
    "/",
    route_handlers=[
        watchers,
        watcher,
        parked,
        parked_message,
        parked_message_body,
        streams,
        stream,
    ],
    tags=["Streams and watchers"],
)
