"""Routes that list and show assets and their events, and record new events."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from litestar import Response, Router
from litestar.params import JSONBody, QueryParameter
from msgspec import Struct
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.api.access.roles import Access
from triggerer.api.gate import part
from triggerer.api.hiding import without_payloads
from triggerer.api.paging import Counted, Cursor, Limit, Page, page_of
from triggerer.api.parameters import (
    Api,
    AssetFilter,
    Caller,
    DagFilter,
    IdempotencyKey,
    InPath,
    Prefix,
    as_bytes,
)
from triggerer.api.responses import JsonResponse
from triggerer.api.routing import answers_repeats, creates, reads
from triggerer.errors import BadRequest, NothingThere, RoleNeeded, UnknownAsset
from triggerer.operations.emitting import Emission, EmittingTask, emit_once
from triggerer.operations.repeats import is_repeat
from triggerer.store.access.run_tokens import find_run_token, outlets_of
from triggerer.store.dags.listing import list_assets
from triggerer.store.events.following import follow_asset_events
from triggerer.store.events.listing import list_asset_events
from triggerer.store.events.tracing import Trace, trace_event
from triggerer.store.listing.pages import ASSET_EVENTS, ASSETS
from triggerer.store.listing.views import AssetEventView, AssetView


class NewEvent(Struct, forbid_unknown_fields=True, frozen=True):
    """An event to record."""

    asset: str
    """The asset's name or URI."""
    extra: dict[str, Any] = {}
    partition_key: str | None = None
    create: bool = False
    """True: also accept an asset that no DAG file declares. With a run token this has no effect."""


@reads("/")
async def assets(
    api: Api,
    limit: Limit = 100,
    cursor: Cursor = None,
    counted: Counted = False,
    asset: AssetFilter = None,
    dag: DagFilter = None,
    asset_state: Annotated[
        Literal["declared", "undeclared"] | None,
        QueryParameter(name="state", description="Whether a DAG file declares the asset."),
    ] = None,
    prefix: Prefix = None,
) -> Page[AssetView]:
    """List the assets, sorted by name. `dag`: only assets that the DAG waits for."""
    return await page_of(
        api,
        ASSETS,
        limit=limit,
        cursor=cursor,
        counted=counted,
        known={"dag": dag, "asset": asset},
        asset=asset,
        dag=dag,
        state=asset_state,
        prefix=prefix,
    )


@reads("/events")
async def events(
    api: Api,
    access: Caller,
    limit: Limit = 100,
    cursor: Cursor = None,
    counted: Counted = False,
    asset: AssetFilter = None,
    dag: Annotated[
        str | None,
        QueryParameter(name="dag", description="Only events that runs of this DAG emitted."),
    ] = None,
    event_state: Annotated[
        Literal["queued", "consumed", "unused"] | None,
        QueryParameter(
            name="state",
            description="queued: the event waits for a run of a DAG; consumed: each DAG that waited has a run with"
            " the event; unused: no DAG waited for the event.",
        ),
    ] = None,
    order: Annotated[
        Literal["newest", "arrival"],
        QueryParameter(
            description="arrival: follow everything from the oldest event on, at least once and unordered."
            " Pages may repeat events; drop the ids that you know."
        ),
    ] = "newest",
) -> Page[AssetEventView]:
    """List asset events, newest first."""
    if order == "arrival":
        if event_state is not None or counted:
            raise BadRequest("order=arrival goes with neither state nor count")
        async with api.use.reading() as session:
            found = await follow_asset_events(
                session, limit=limit, after=cursor, asset=asset, dag=dag
            )
    else:
        found = await page_of(
            api,
            ASSET_EVENTS,
            limit=limit,
            cursor=cursor,
            counted=counted,
            known={"dag": dag, "asset": asset},
            asset=asset,
            dag=dag,
            state=event_state,
        )
    return without_payloads(access, found)


@creates("/events", status=201, by_run=True, responses=answers_repeats(AssetEventView))
async def emit(
    api: Api, access: Caller, data: JSONBody[NewEvent], key: IdempotencyKey = None
) -> Response[AssetEventView]:
    """Record an event of an asset, and queue the event for the DAGs that wait for the asset.

    If a request is repeated with its `Idempotency-Key`, the answer is 200 with the first event. With a run token, a
    task can emit only events of its DAG's outlets.
    """
    key_of_runs = await api.service_key() if access.run is not None else b""
    async with api.use.changing() as session:
        source = await _source(session, access, key_of_runs, data.asset)
        if key is not None:
            await is_repeat(session, access.actor(), key, as_bytes("/assets/events", data))
        event, is_new = await emit_once(
            session,
            access.actor(),
            data.asset,
            Emission(
                data.extra,
                None if key is None else f"http/{access.via}/{key}",
                data.partition_key,
            ),
            create=data.create and source is None,
            source=source,
        )
    return JsonResponse(without_payloads(access, event), status_code=201 if is_new else 200)


async def _source(
    session: AsyncSession, access: Access, key: bytes, asset: str
) -> EmittingTask | None:
    """Return the run and task that emit the event; None if the request's token belongs to no run.

    Raises:
        RoleNeeded: The run's attempt is over, or no task of its DAG has the outlet `asset`.
    """
    if access.run is None:
        return None
    known = await find_run_token(session, key, access.run.token, locks=True)
    if known is None:
        raise RoleNeeded("the attempt of this token is over")
    task_id = (await outlets_of(session, known.dag_id)).get(asset)
    if task_id is None:
        raise RoleNeeded(
            f"no task of the DAG {known.dag_id!r} has the outlet {asset!r}",
            hint="add it to the outlets of a task",
        )
    return EmittingTask(known.dag_id, known.run_id, task_id)


@reads("/events/{event_id:str}")
async def event(api: Api, access: Caller, event_id: InPath) -> AssetEventView:
    """Show an asset event."""
    async with api.use.reading() as session:
        found = await list_asset_events(session, event_id=_number(event_id), limit=1)
    if not found:
        raise _no_event(event_id)
    return without_payloads(access, found[0])


@reads("/events/{event_id:str}/trace")
async def event_trace(api: Api, access: Caller, event_id: InPath) -> Trace:
    """Show where an event came from and what it led to: its stream, the runs that took it, their tasks and events."""
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


@reads("/{asset:str}")
async def one_asset(api: Api, asset: InPath) -> AssetView:
    """Show an asset, given by its name or its URI. Each slash of the URI is written as `%2F`."""
    async with api.use.reading() as session:
        found = await list_assets(session, asset=part(asset), limit=1)
        if not found:
            raise UnknownAsset(part(asset))
    return found[0]


ROUTER = Router(
    "/assets",
    route_handlers=[assets, events, emit, event, event_trace, one_asset],
    tags=["Assets"],
)
