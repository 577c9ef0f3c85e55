"""Routes that list, plan, start and cancel backfills."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from litestar import Router
from litestar.params import JSONBody, QueryParameter
from msgspec import Meta, Struct

from triggerer.api.gate import part
from triggerer.api.paging import Counted, Cursor, Limit, Page, page_of, whole
from triggerer.api.parameters import Api, Caller, DagFilter, InPath
from triggerer.api.routing import creates, reads
from triggerer.domain.backfills import Reprocess
from triggerer.errors import BadRequest, NothingThere
from triggerer.operations.backfills import (
    PlannedInterval,
    cancel_backfill,
    plan_backfill,
    start_backfill,
)
from triggerer.store.listing.pages import BACKFILLS
from triggerer.store.listing.views import BackfillView


class Range(Struct, forbid_unknown_fields=True, frozen=True):
    """The range of logical dates to run. Both ends belong to the range."""

    from_date: datetime
    to_date: datetime
    reprocess: Literal["none", "failed", "all"] = "none"
    """The existing runs to repeat."""
    max_active: Annotated[int, Meta(ge=1, le=1_000)] = 10
    params: dict[str, Any] | None = None


@reads("/backfills")
async def backfills(
    api: Api,
    limit: Limit = 100,
    cursor: Cursor = None,
    counted: Counted = False,
    dag: DagFilter = None,
    backfill_state: Annotated[
        Literal["running", "done", "cancelled"] | None, QueryParameter(name="state")
    ] = None,
) -> Page[BackfillView]:
    """List the backfills, newest first."""
    return await page_of(
        api,
        BACKFILLS,
        limit=limit,
        cursor=cursor,
        counted=counted,
        known={"dag": dag},
        dag=dag,
        state=backfill_state,
    )


@creates("/dags/{dag_id:str}/backfills/plan", role="viewer")
async def plan(api: Api, dag_id: InPath, data: JSONBody[Range]) -> Page[PlannedInterval]:
    """Show the runs that a backfill would make. No backfill is started."""
    _refuse_naive(data)
    async with api.use.reading() as session:
        found = await plan_backfill(
            session,
            part(dag_id),
            data.from_date,
            data.to_date,
            reprocess=Reprocess(data.reprocess),
        )
    return whole(found)


@creates("/dags/{dag_id:str}/backfills", status=201)
async def start(api: Api, access: Caller, dag_id: InPath, data: JSONBody[Range]) -> BackfillView:
    """Start a backfill of a DAG's timetable."""
    _refuse_naive(data)
    async with api.use.changing() as session:
        return await start_backfill(
            session,
            access.actor(),
            part(dag_id),
            data.from_date,
            data.to_date,
            reprocess=Reprocess(data.reprocess),
            max_active=data.max_active,
            params=data.params,
        )


@creates("/backfills/{backfill_id:str}/cancel")
async def cancel(api: Api, access: Caller, backfill_id: InPath) -> BackfillView:
    """Cancel a backfill's pending intervals and queued runs. Runs that have started continue."""
    if not backfill_id.isascii() or not backfill_id.isdecimal() or len(backfill_id) > 18:
        raise NothingThere(f"there is no backfill {part(backfill_id)!r}")
    async with api.use.changing() as session:
        return await cancel_backfill(session, access.actor(), int(backfill_id))


def _refuse_naive(data: Range) -> None:
    if data.from_date.tzinfo is None or data.to_date.tzinfo is None:
        raise BadRequest("a date has no time zone", hint="end it with Z for UTC")


ROUTER = Router("/", route_handlers=[backfills, plan, start, cancel], tags=["Backfills"])
