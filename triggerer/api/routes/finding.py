"""Finds the events of a message, the events that a run emitted, and the attempts of a run."""

from __future__ import annotations

from typing import Annotated

from litestar import Router
from litestar.params import QueryParameter

from triggerer.api.gate import part
from triggerer.api.hiding import without_payloads
from triggerer.api.paging import Page, whole
from triggerer.api.parameters import Api, Caller, InPath
from triggerer.api.routing import reads
from triggerer.errors import UnknownRun
from triggerer.store.events.finding import find_events, find_events_of_run
from triggerer.store.listing.views import AssetEventView, AttemptView
from triggerer.store.runs.attempts.listing import list_attempts
from triggerer.store.runs.listing import find_run


@reads("/assets/events/find")
async def find(
    api: Api,
    access: Caller,
    q: Annotated[
        str,
        QueryParameter(
            min_length=1,
            max_length=1_000,
            description="An idempotency key, or `topic/partition/offset` of a Kafka message.",
        ),
    ],
) -> Page[AssetEventView]:
    """Find the events of a message, at most 100."""
    async with api.use.reading() as session:
        return without_payloads(access, whole(await find_events(session, q)))


@reads("/dags/{dag_id:str}/dagRuns/{run_id:str}/events", by_run=True)
async def emitted(api: Api, access: Caller, dag_id: InPath, run_id: InPath) -> Page[AssetEventView]:
    """List the events that a run emitted: the first 100."""
    access.require_run(part(dag_id), part(run_id))
    async with api.use.reading() as session:
        if await find_run(session, part(dag_id), part(run_id)) is None:
            raise UnknownRun(part(dag_id), part(run_id))
        found = await find_events_of_run(session, part(dag_id), part(run_id))
    return without_payloads(access, whole(found))


@reads("/dags/{dag_id:str}/dagRuns/{run_id:str}/attempts", by_run=True)
async def attempts(api: Api, access: Caller, dag_id: InPath, run_id: InPath) -> Page[AttemptView]:
    """List the attempts of a run, each with its launches."""
    access.require_run(part(dag_id), part(run_id))
    async with api.use.reading() as session:
        if await find_run(session, part(dag_id), part(run_id)) is None:
            raise UnknownRun(part(dag_id), part(run_id))
        return whole(await list_attempts(session, part(dag_id), part(run_id)))


ROUTER = Router("/", route_handlers=[find, emitted, attempts], tags=["Assets"])
