"""Routes that list, show, explain, cancel, retry and clear runs, and that list the tasks of a run."""

from __future__ import annotations

from typing import Annotated, Literal

from litestar import Router
from litestar.params import JSONBody, QueryParameter
from msgspec import Struct

from triggerer.api.context import ApiContext
from triggerer.api.gate import part
from triggerer.api.hiding import without_payloads
from triggerer.api.paging import Counted, Cursor, Limit, Page, page_of
from triggerer.api.parameters import Api, AssetFilter, Caller, DagFilter, InPath
from triggerer.api.routing import creates, reads
from triggerer.errors import UnknownRun
from triggerer.operations.reading.reasons import WhyView, view_of_why
from triggerer.operations.runs import cancel_run, clear_run, retry_run
from triggerer.scheduler.explaining import why
from triggerer.store.listing.pages import RUNS, TASKS
from triggerer.store.listing.views import RunView, TaskRunView
from triggerer.store.runs.listing import find_run, list_runs

RunState = Annotated[
    Literal["queued", "running", "success", "failed", "cancelled"] | None,
    QueryParameter(name="state", description="Only runs in this state."),
]


class Clearing(Struct, forbid_unknown_fields=True, frozen=True):
    """The tasks to repeat. Every task that comes after one of them in the DAG is repeated too. Empty: all tasks."""

    tasks: list[str] = []


@reads("/runs")
async def all_runs(
    api: Api,
    limit: Limit = 100,
    cursor: Cursor = None,
    counted: Counted = False,
    dag: DagFilter = None,
    asset: AssetFilter = None,
    run_state: RunState = None,
) -> Page[RunView]:
    """List the runs of all DAGs, newest first. `asset`: only runs that took an event of this asset."""
    return await _page(api, limit, cursor, counted, dag=dag, asset=asset, state=run_state)


@reads("/dags/{dag_id:str}/dagRuns")
async def runs_of_dag(
    api: Api,
    dag_id: InPath,
    limit: Limit = 100,
    cursor: Cursor = None,
    counted: Counted = False,
    asset: AssetFilter = None,
    run_state: RunState = None,
) -> Page[RunView]:
    """List the runs of a DAG, newest first."""
    return await _page(api, limit, cursor, counted, dag=part(dag_id), asset=asset, state=run_state)


async def _page(
    api: ApiContext,
    limit: int,
    cursor: str | None,
    counted: bool,
    *,
    dag: str | None,
    asset: str | None,
    state: str | None,
) -> Page[RunView]:
    return await page_of(
        api,
        RUNS,
        limit=limit,
        cursor=cursor,
        counted=counted,
        known={"dag": dag, "asset": asset},
        dag=dag,
        asset=asset,
        state=state,
    )


@reads("/dags/{dag_id:str}/dagRuns/{run_id:str}", by_run=True)
async def run(api: Api, access: Caller, dag_id: InPath, run_id: InPath) -> RunView:
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
async def run_why(api: Api, access: Caller, dag_id: InPath, run_id: InPath) -> WhyView:
    """Show why a run exists: its asset events, and the broker messages that they came from."""
    access.require_run(part(dag_id), part(run_id))
    async with api.use.reading() as session:
        found = view_of_why(await why(session, part(dag_id), part(run_id)))
    return without_payloads(access, found)


@reads("/dags/{dag_id:str}/dagRuns/{run_id:str}/tasks", by_run=True)
async def run_tasks(
    api: Api,
    access: Caller,
    dag_id: InPath,
    run_id: InPath,
    limit: Limit = 100,
    cursor: Cursor = None,
    counted: Counted = False,
) -> Page[TaskRunView]:
    """List the tasks of a run in the order of their start."""
    access.require_run(part(dag_id), part(run_id))
    async with api.use.reading() as session:
        if await find_run(session, part(dag_id), part(run_id)) is None:
            raise UnknownRun(part(dag_id), part(run_id))
        return await TASKS.page(
            session,
            limit=limit,
            after=cursor,
            with_count=counted,
            dag=part(dag_id),
            run_id=part(run_id),
        )


@creates("/dags/{dag_id:str}/dagRuns/{run_id:str}/cancel")
async def cancel(api: Api, access: Caller, dag_id: InPath, run_id: InPath) -> RunView:
    """Cancel a run. A queued run is cancelled at once, and a running run once its executor has stopped it."""
    async with api.use.changing() as session:
        await cancel_run(session, access.actor(), part(dag_id), part(run_id))
        return (await list_runs(session, dag=part(dag_id), run_id=part(run_id), limit=1))[0]


@creates("/dags/{dag_id:str}/dagRuns/{run_id:str}/retry")
async def retry(api: Api, access: Caller, dag_id: InPath, run_id: InPath) -> RunView:
    """Queue a failed or cancelled run again.

    A task that succeeded is repeated only if another task needs its result.
    """
    async with api.use.changing() as session:
        await retry_run(session, access.actor(), part(dag_id), part(run_id))
        return (await list_runs(session, dag=part(dag_id), run_id=part(run_id), limit=1))[0]


@creates("/dags/{dag_id:str}/dagRuns/{run_id:str}/clear")
async def clear(
    api: Api, access: Caller, dag_id: InPath, run_id: InPath, data: JSONBody[Clearing | None] = None
) -> RunView:
    """Queue an ended run again and repeat the given tasks, even if they succeeded. The tasks emit events again.

    Without tasks, all tasks are repeated.
    """
    tasks = data.tasks if data is not None else []
    async with api.use.changing() as session:
        await clear_run(session, access.actor(), part(dag_id), part(run_id), tasks=tasks)
        return (await list_runs(session, dag=part(dag_id), run_id=part(run_id), limit=1))[0]


ROUTER = Router(
    "/",
    route_handlers=[all_runs, runs_of_dag, run, run_why, run_tasks, cancel, retry, clear],
    tags=["Runs"],
)
