"""DAGs, and why one has no run."""

from __future__ import annotations

from litestar import Router

from triggerer.api.gate import part
from triggerer.api.paging import Cursor, Limit, Page
from triggerer.api.parameters import Api, AssetFilter, State
from triggerer.api.routing import reads
from triggerer.errors import UnknownDag
from triggerer.scheduler.explaining import NextRun, WhyNot, next_runs, why_not
from triggerer.store.dags.listing import list_dags
from triggerer.store.listing.unknown import refuse_unknown
from triggerer.store.listing.views import DagView


@reads("/")
async def dags(
    api: Api,
    limit: Limit = 100,
    cursor: Cursor = None,
    asset: AssetFilter = None,
    chosen_state: State = None,
) -> Page[DagView]:
    """List the DAGs by id."""
    async with api.use.reading() as session:
        found = await list_dags(session, limit=limit, asset=asset, state=chosen_state)
        if not found:
            await refuse_unknown(session, asset=asset)
    return Page(found, None)


@reads("/{dag_id:str}")
async def dag(api: Api, dag_id: str) -> DagView:
    """Show a DAG."""
    async with api.use.reading() as session:
        found = await list_dags(session, dag=part(dag_id), limit=1)
        if not found:
            raise UnknownDag(part(dag_id))
    return found[0]


@reads("/{dag_id:str}/why-not")
async def dag_why_not(api: Api, dag_id: str) -> WhyNot:
    """Show what a DAG waits for, and what holds its runs back."""
    async with api.use.reading() as session:
        return await why_not(session, part(dag_id), pools=api.settings.pools)


@reads("/{dag_id:str}/next")
async def dag_next(api: Api, dag_id: str) -> Page[NextRun]:
    """List the next runs that the DAG's timetable asks for."""
    async with api.use.reading() as session:
        return Page(await next_runs(session, part(dag_id), 10), None)


ROUTER = Router("/dags", route_handlers=[dags, dag, dag_why_not, dag_next], tags=["DAGs"])
