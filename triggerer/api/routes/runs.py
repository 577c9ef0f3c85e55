"""Runs: their times, tasks and reasons."""

from __future__ import annotations

from typing import Annotated, Literal

from litestar import Router
from litestar.params import Parameter

from triggerer.api.gate import part
from triggerer.api.hiding import without_payloads
from triggerer.api.paging import Cursor, Limit, Page
from triggerer.api.parameters import Api, AssetFilter, Caller, DagFilter
from triggerer.api.routing import reads
from triggerer.errors import UnknownRun
from triggerer.operations.reasons import WhyView, view_of_why
from triggerer.scheduler.explaining import why
from triggerer.store.listing.unknown import refuse_unknown
from triggerer.store.listing.views import RunView, TaskRunView
from triggerer.store.runs.listing import find_run, list_runs, list_task_runs

RunState = Annotated[
    Literal["queued", "running", "success", "failed", "cancelled"] | None,
    Parameter(query="state", description="Only runs in this state."),
]


@reads("/runs")
async def all_runs(
    api: Api,
    limit: Limit = 100,
    cursor: Cursor = None,
    dag: DagFilter = None,
    asset: AssetFilter = None,
    run_state: RunState = None,
) -> Page[RunView]:
    """List the runs of all DAGs, newest first."""
    return await _page(api, limit, cursor, dag=dag, asset=asset, state=run_state)


@reads("/dags/{dag_id:str}/dagRuns")
async def runs_of_dag(
    api: Api,
    dag_id: str,
    limit: Limit = 100,
    cursor: Cursor = None,
    asset: AssetFilter = None,
    run_state: RunState = None,
) -> Page[RunView]:
    """List the runs of a DAG, newest first."""
    return await _page(api, limit, cursor, dag=part(dag_id), asset=asset, state=run_state)


async def _page(
    api: Api,
    limit: int,
    cursor: str | None,
    *,
    dag: str | None,
    asset: str | None,
    state: str | None,
) -> Page[RunView]:
    async with api.use.reading() as session:
        found = await list_runs(
            session, limit=limit, dag=dag, asset=asset, state=state, with_events=True
        )
        if not found:
            await refuse_unknown(session, dag=dag, asset=asset)
    return Page(found, None)


@reads("/dags/{dag_id:str}/dagRuns/{run_id:str}", by_run=True)
async def run(api: Api, access: Caller, dag_id: str, run_id: str) -> RunView:
    """Show a run."""
    access.require_run(part(dag_id), part(run_id))
    async with api.use.reading() as session:
        found = await list_runs(
            session, dag=part(dag_id), run_id=part(run_id), limit=1, with_events=True
        )
        if not found:
            raise UnknownRun(part(dag_id), part(run_id))
    return found[0]


@reads("/dags/{dag_id:str}/dagRuns/{run_id:str}/why", by_run=True)
async def run_why(api: Api, access: Caller, dag_id: str, run_id: str) -> WhyView:
    """Show why a run exists: its asset events, and the broker messages that they came from."""
    access.require_run(part(dag_id), part(run_id))
    async with api.use.reading() as session:
        found = view_of_why(await why(session, part(dag_id), part(run_id)))
    return without_payloads(access, found)


@reads("/dags/{dag_id:str}/dagRuns/{run_id:str}/tasks", by_run=True)
async def run_tasks(api: Api, access: Caller, dag_id: str, run_id: str) -> Page[TaskRunView]:
    """List the tasks of a run by start time."""
    access.require_run(part(dag_id), part(run_id))
    async with api.use.reading() as session:
        if await find_run(session, part(dag_id), part(run_id)) is None:
            raise UnknownRun(part(dag_id), part(run_id))
        return Page(await list_task_runs(session, part(dag_id), part(run_id)), None)


ROUTER = Router("/", route_handlers=[all_runs, runs_of_dag, run, run_why, run_tasks], tags=["Runs"])
