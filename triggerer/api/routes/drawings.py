"""The page's drawings: the grid and the calendar of a DAG, and the graph of the assets."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from litestar import Router
from litestar.params import QueryParameter

from triggerer.api.gate import part
from triggerer.api.parameters import Api, InPath
from triggerer.api.routing import reads
from triggerer.store.dags.graph import AssetGraph, read_graph
from triggerer.store.dags.neighbourhood import read_neighbourhood
from triggerer.store.runs.drawing import Calendar, Grid, read_calendar, read_grid


@reads("/dags/{dag_id:str}/grid")
async def grid(
    api: Api,
    dag_id: InPath,
    limit: Annotated[
        int, QueryParameter(ge=1, le=100, description="The most runs to return.")
    ] = 50,
    before: Annotated[
        int | None, QueryParameter(ge=1, le=2**62, description="The `next_before` of another grid.")
    ] = None,
) -> Grid:
    """Show the states of a DAG's tasks in its newest runs."""
    async with api.use.reading() as session:
        return await read_grid(session, part(dag_id), limit=limit, before=before)


@reads("/dags/{dag_id:str}/calendar")
async def calendar(
    api: Api,
    dag_id: InPath,
    year: Annotated[
        int | None, QueryParameter(ge=1970, le=9998, description="Default: this year, in UTC.")
    ] = None,
) -> Calendar:
    """Count the runs of a DAG in one year, by day and state."""
    async with api.use.reading() as session:
        return await read_calendar(session, part(dag_id), year or datetime.now(UTC).year)


@reads("/assets/graph")
async def graph(
    api: Api,
    around: Annotated[
        str | None,
        QueryParameter(
            description="Only this asset (name or URI), with its watchers and neighbours."
        ),
    ] = None,
    hops: Annotated[
        int, QueryParameter(ge=1, le=10, description="The most steps to a neighbour.")
    ] = 2,
    group: Annotated[str | None, QueryParameter(description="Only assets of this group.")] = None,
) -> AssetGraph:
    """Show the graph of assets and DAGs, of at most 2,000 nodes.

    With `around`, show only the nodes near one asset, at most 100. Watchers are included.
    """
    async with api.use.reading() as session:
        if around is None:
            return await read_graph(session, group=group)
        return await read_neighbourhood(session, around, hops)


ROUTER = Router("/", route_handlers=[grid, calendar, graph], tags=["Drawings"])
