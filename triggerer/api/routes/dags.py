"""Routes that list, pause and trigger DAGs, and explain why a DAG has no run."""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Any

from litestar import Response, Router
from litestar.params import JSONBody
from msgspec import Struct

from triggerer.api.gate import part
from triggerer.api.paging import Counted, Cursor, Limit, Page, page_of, whole
from triggerer.api.parameters import (
    Api,
    AssetFilter,
    Caller,
    DagState,
    IdempotencyKey,
    InPath,
    Prefix,
    as_bytes,
)
from triggerer.api.responses import JsonResponse
from triggerer.api.routing import alters, answers_repeats, creates, reads
from triggerer.errors import BadRequest, UnknownDag
from triggerer.operations.pausing import pause_dag, unpause_dag
from triggerer.operations.repeats import is_repeat
from triggerer.operations.triggering import trigger_dag
from triggerer.scheduler.explaining import NextRun, WhyNot, next_runs, why_not
from triggerer.store.dags.listing import list_dags
from triggerer.store.listing.pages import DAGS
from triggerer.store.listing.views import DagView, RunView
from triggerer.store.runs.listing import list_runs


class Pausing(Struct, forbid_unknown_fields=True, frozen=True):
    """Whether the DAG shall be paused."""

    is_paused: bool


class NewRun(Struct, forbid_unknown_fields=True, frozen=True):
    """A run to queue. Every field is optional."""

    run_id: str | None = None
    params: dict[str, Any] | None = None
    """Values that replace the DAG's parameters of the same names."""
    logical_date: datetime | None = None
    partition_key: str | None = None


@reads("/")
async def dags(
    api: Api,
    limit: Limit = 100,
    cursor: Cursor = None,
    counted: Counted = False,
    asset: AssetFilter = None,
    dag_state: DagState = None,
    prefix: Prefix = None,
) -> Page[DagView]:
    """List the DAGs, sorted by id. `asset`: only DAGs that wait for this asset."""
    return await page_of(
        api,
        DAGS,
        limit=limit,
        cursor=cursor,
        counted=counted,
        known={"asset": asset},
        asset=asset,
        state=dag_state,
        prefix=prefix,
    )


@reads("/{dag_id:str}")
async def dag(api: Api, dag_id: InPath) -> DagView:
    """Show a DAG."""
    async with api.use.reading() as session:
        found = await list_dags(session, dag=part(dag_id), limit=1)
        if not found:
            raise UnknownDag(part(dag_id))
    return found[0]


@alters("/{dag_id:str}")
async def pause(api: Api, access: Caller, dag_id: InPath, data: JSONBody[Pausing]) -> DagView:
    """Pause or unpause a DAG. While a DAG is paused, asset events wait in its queue."""
    change = pause_dag if data.is_paused else unpause_dag
    async with api.use.changing() as session:
        await change(session, access.actor(), part(dag_id))
        return (await list_dags(session, dag=part(dag_id), limit=1))[0]


@reads("/{dag_id:str}/why-not")
async def dag_why_not(api: Api, dag_id: InPath) -> WhyNot:
    """Show what a DAG waits for, and what holds its runs back."""
    async with api.use.reading() as session:
        return await why_not(session, part(dag_id), pools=api.settings.pools)


@reads("/{dag_id:str}/next")
async def dag_next(api: Api, dag_id: InPath) -> Page[NextRun]:
    """List the DAG's next ten runs according to its timetable."""
    async with api.use.reading() as session:
        return whole(await next_runs(session, part(dag_id), 10))


@creates("/{dag_id:str}/dagRuns", status=201, responses=answers_repeats(RunView))
async def trigger(
    api: Api, access: Caller, dag_id: InPath, data: JSONBody[NewRun], key: IdempotencyKey = None
) -> Response[RunView]:
    """Queue a manual run, even if the DAG is paused.

    If a request is repeated with its `Idempotency-Key`, the answer is 200 with the first run. Without `run_id`, the
    run's id is made from the key.
    """
    run, is_new = await queue_run(api, access, part(dag_id), data, key)
    return JsonResponse(run, status_code=201 if is_new else 200)


async def queue_run(
    api: Api, access: Caller, dag_id: str, wanted: NewRun, key: str | None
) -> tuple[RunView, bool]:
    """Queue a run, or find the run that an earlier request with this key has queued.

    Returns:
        The run, and whether it is new.
    Raises:
        KeyReused: The earlier request with this key had other values.
    """
    if wanted.logical_date is not None and wanted.logical_date.tzinfo is None:
        raise BadRequest("logical_date has no time zone", hint="end it with Z for UTC")
    run_id = wanted.run_id
    if key is not None and run_id is None:
        digest = hashlib.sha256(f"{access.via}\0{dag_id}\0{key}".encode()).hexdigest()[:24]
        run_id = f"manual__key_{digest}"
    async with api.use.changing() as session:
        asked = as_bytes(f"/dags/{dag_id}/dagRuns", wanted)
        if key is not None and await is_repeat(session, access.actor(), key, asked):
            found = await list_runs(session, dag=dag_id, run_id=run_id, limit=1)
            if found:
                return found[0], False
        made = await trigger_dag(
            session,
            access.actor(),
            dag_id,
            run_id=run_id,
            params=wanted.params,
            logical_date=wanted.logical_date,
            partition_key=wanted.partition_key,
        )
        return (await list_runs(session, dag=dag_id, run_id=made, limit=1))[0], True


ROUTER = Router(
    "/dags", route_handlers=[dags, dag, pause, dag_why_not, dag_next, trigger], tags=["DAGs"]
)
