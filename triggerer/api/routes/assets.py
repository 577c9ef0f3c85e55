"""Assets, their events, and the events that wait for DAGs."""

from __future__ import annotations

from typing import Annotated, Literal

from litestar import Router
from litestar.params import Parameter

from triggerer.api.gate import part
from triggerer.api.hiding import without_payloads
from triggerer.api.paging import Cursor, Limit, Page
from triggerer.api.parameters import Api, AssetFilter, Caller, DagFilter
from triggerer.api.routing import reads
from triggerer.errors import NothingThere, UnknownAsset
from triggerer.operations.queued_events import list_queued_events
from triggerer.store.dags.listing import list_assets
from triggerer.store.events.listing import list_asset_events
from triggerer.store.events.tracing import Trace, trace_event
from triggerer.store.listing.unknown import refuse_unknown
from triggerer.store.listing.views import AssetEventView, AssetView, QueuedEventView

DagState = Annotated[
    Literal["active", "paused", "stale"] | None,
    Parameter(query="state", description="Only of DAGs in this state."),
]


@reads("/")
async def assets(
    api: Api,
    limit: Limit = 100,
    cursor: Cursor = None,
    asset: AssetFilter = None,
    dag: DagFilter = None,
    asset_state: Annotated[
        Literal["declared", "undeclared"] | None,
        Parameter(query="state", description="Whether a DAG file declares the asset."),
    ] = None,
) -> Page[AssetView]:
    """List the assets by name. `dag`: only assets that the DAG waits for."""
    async with api.use.reading() as session:
        found = await list_assets(session, limit=limit, asset=asset, dag=dag, state=asset_state)
        if not found:
            await refuse_unknown(session, dag=dag, asset=asset)
    return Page(found, None)


@reads("/events")
async def events(
    api: Api,
    access: Caller,
    limit: Limit = 100,
    cursor: Cursor = None,
    asset: AssetFilter = None,
    dag: Annotated[
        str | None, Parameter(query="dag", description="Only events that runs of this DAG emitted.")
    ] = None,
    event_state: Annotated[
        Literal["queued", "consumed", "unused"] | None,
        Parameter(
            query="state",
            description="queued: a DAG still waits to take it; consumed: all DAGs have taken it;"
            " unused: no DAG waited for it.",
        ),
    ] = None,
) -> Page[AssetEventView]:
    """List asset events, newest first."""
    async with api.use.reading() as session:
        found = await list_asset_events(
            session, limit=limit, asset=asset, dag=dag, state=event_state
        )
        if not found:
            await refuse_unknown(session, dag=dag, asset=asset)
    return without_payloads(access, Page(found, None))


@reads("/events/{event_id:str}")
async def event(api: Api, access: Caller, event_id: str) -> AssetEventView:
    """Show an asset event."""
    async with api.use.reading() as session:
        found = await list_asset_events(session, event_id=_number(event_id), limit=1)
    if not found:
        raise _no_event(event_id)
    return without_payloads(access, found[0])


@reads("/events/{event_id:str}/trace")
async def event_trace(api: Api, access: Caller, event_id: str) -> Trace:
    """Show what led to an event and what came of it: its stream, its runs with their tasks, and their events."""
    async with api.use.reading() as session:
        found = await trace_event(session, _number(event_id))
    if found is None:
        raise _no_event(event_id)
    return without_payloads(access, found)


def _number(event_id: str) -> int:
    if not event_id.isascii() or not event_id.isdecimal() or len(event_id) > 18:
        raise _no_event(event_id)
    return int(event_id)


def _no_event(event_id: str) -> NothingThere:
    return NothingThere(
        f"there is no asset event {part(event_id)!r}", hint="triggerer assets events lists them"
    )


@reads("/queuedEvent")
async def queued_events(
    api: Api,
    limit: Limit = 100,
    uri: Annotated[
        str | None, Parameter(query="uri", description="Only of the asset with this URI or name.")
    ] = None,
    dag: DagFilter = None,
    dag_state: DagState = None,
) -> Page[QueuedEventView]:
    """List the events that wait for DAGs, by DAG, oldest first."""
    return await list_queue(api, limit, dag=dag, asset=uri, dag_state=dag_state)


@reads("/queuedEvent/{uri:str}")
async def queued_events_of(
    api: Api, uri: str, limit: Limit = 100, dag_state: DagState = None
) -> Page[QueuedEventView]:
    """List the waiting events of an asset."""
    return await list_queue(api, limit, dag=None, asset=part(uri), dag_state=dag_state)


async def list_queue(
    api: Api, limit: int, *, dag: str | None, asset: str | None, dag_state: str | None
) -> Page[QueuedEventView]:
    """Return waiting events. An unknown DAG or asset is an error."""
    async with api.use.reading() as session:
        found = await list_queued_events(
            session, limit=limit, dag=dag, asset=asset, state=dag_state
        )
        if not found:
            await refuse_unknown(session, dag=dag, asset=asset)
    return Page(found, None)


@reads("/{asset:str}")
async def one_asset(api: Api, asset: str) -> AssetView:
    """Show an asset, given by its name or its URI (with `%2F`)."""
    async with api.use.reading() as session:
        found = await list_assets(session, asset=part(asset), limit=1)
        if not found:
            raise UnknownAsset(part(asset))
    return found[0]


ROUTER = Router(
    "/assets",
    route_handlers=[
        assets,
        events,
        event,
        event_trace,
        queued_events,
        queued_events_of,
        one_asset,
    ],
    tags=["Assets"],
)
