"""Routes that list and delete queued events: the events in the queues of all DAGs, or in the queue of one DAG.

A client may send an asset's URI in `?uri=` instead of the path, because some proxies decode the `%2F` in a path.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from litestar import Router
from litestar.params import QueryParameter

from triggerer.api.access.roles import Access
from triggerer.api.context import ApiContext
from triggerer.api.gate import part
from triggerer.api.paging import Counted, Cursor, Limit, Page, page_of
from triggerer.api.parameters import Api, Caller, DagFilter, DagState, InPath
from triggerer.api.routing import deletes, reads
from triggerer.operations.queued_events import delete_queued_events
from triggerer.store.listing.pages import QUEUED
from triggerer.store.listing.views import QueuedEventView

Uri = Annotated[
    str | None, QueryParameter(name="uri", description="Only events of this asset (URI or name).")
]


@dataclass(frozen=True, slots=True)
class Deleted:
    """The number of entries that were deleted."""

    count: int


@reads("/assets/queuedEvent")
async def queued(
    api: Api,
    limit: Limit = 100,
    cursor: Cursor = None,
    counted: Counted = False,
    uri: Uri = None,
    dag: DagFilter = None,
    dag_state: DagState = None,
) -> Page[QueuedEventView]:
    """List the events that wait for DAGs, sorted by DAG, then oldest first."""
    return await _page(api, limit, cursor, counted, dag, uri, dag_state)


@reads("/assets/queuedEvent/{uri:str}")
async def queued_of_asset(
    api: Api,
    uri: InPath,
    limit: Limit = 100,
    cursor: Cursor = None,
    counted: Counted = False,
    dag_state: DagState = None,
) -> Page[QueuedEventView]:
    """List the waiting events of an asset."""
    return await _page(api, limit, cursor, counted, None, part(uri), dag_state)


@reads("/dags/{dag_id:str}/assets/queuedEvent")
async def queued_for_dag(
    api: Api,
    dag_id: InPath,
    limit: Limit = 100,
    cursor: Cursor = None,
    counted: Counted = False,
    uri: Uri = None,
) -> Page[QueuedEventView]:
    """List the events that wait for a DAG."""
    return await _page(api, limit, cursor, counted, part(dag_id), uri, None)


@reads("/dags/{dag_id:str}/assets/queuedEvent/{uri:str}")
async def queued_for_dag_of_asset(
    api: Api,
    dag_id: InPath,
    uri: InPath,
    limit: Limit = 100,
    cursor: Cursor = None,
    counted: Counted = False,
) -> Page[QueuedEventView]:
    """List the events of an asset that wait for a DAG."""
    return await _page(api, limit, cursor, counted, part(dag_id), part(uri), None)


async def _page(
    api: ApiContext,
    limit: int,
    cursor: str | None,
    counted: bool,
    dag: str | None,
    asset: str | None,
    dag_state: str | None,
) -> Page[QueuedEventView]:
    return await page_of(
        api,
        QUEUED,
        limit=limit,
        cursor=cursor,
        counted=counted,
        known={"dag": dag, "asset": asset},
        dag=dag,
        asset=asset,
        state=dag_state,
    )


@deletes("/assets/queuedEvent")
async def delete_of_uri(api: Api, access: Caller, uri: Uri = None) -> Deleted:
    """Remove an asset's events from the queues of all DAGs. `uri` is required. The events themselves stay."""
    return await _delete(api, access, None, uri)


@deletes("/assets/queuedEvent/{uri:str}")
async def delete_of_asset(api: Api, access: Caller, uri: InPath) -> Deleted:
    """Remove an asset's events from the queues of all DAGs. The events themselves stay."""
    return await _delete(api, access, None, part(uri))


@deletes("/dags/{dag_id:str}/assets/queuedEvent")
async def delete_for_dag(api: Api, access: Caller, dag_id: InPath, uri: Uri = None) -> Deleted:
    """Remove all events, or only one asset's events, from a DAG's queue. The events themselves stay."""
    return await _delete(api, access, part(dag_id), uri)


@deletes("/dags/{dag_id:str}/assets/queuedEvent/{uri:str}")
async def delete_for_dag_of_asset(api: Api, access: Caller, dag_id: InPath, uri: InPath) -> Deleted:
    """Remove an asset's events from a DAG's queue. The events themselves stay."""
    return await _delete(api, access, part(dag_id), part(uri))


async def _delete(api: ApiContext, access: Access, dag: str | None, asset: str | None) -> Deleted:
    async with api.use.changing() as session:
        count = await delete_queued_events(session, access.actor(), dag=dag, asset=asset)
    return Deleted(count)


ROUTER = Router(
    "/",
    route_handlers=[
        queued,
        queued_of_asset,
        queued_for_dag,
        queued_for_dag_of_asset,
        delete_of_uri,
        delete_of_asset,
        delete_for_dag,
        delete_for_dag_of_asset,
    ],
    tags=["Queued events"],
)
