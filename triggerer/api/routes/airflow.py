"""Six routes of Airflow's REST API v2, for programs that use Airflow's client.

The routes emit an event, list the assets, trigger a run, show a run, pause a DAG, and return a token. If an answer of
Airflow has a field that this project lacks, the field has a fixed value, such as null or an empty list.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from litestar import Response, Router, post
from litestar.params import FromQuery, JSONBody, QueryParameter
from msgspec import Struct

from triggerer.api.access.authorizing import PUBLIC
from triggerer.api.gate import part
from triggerer.api.hiding import without_payloads
from triggerer.api.parameters import Api, Caller, InPath
from triggerer.api.responses import JsonResponse
from triggerer.api.routes.dags import NewRun, queue_run
from triggerer.api.routing import alters, creates, reads
from triggerer.errors import BadRequest, NothingThere, SignInNeeded, UnknownDag, UnknownRun
from triggerer.operations.emitting import Emission, emit_once
from triggerer.operations.pausing import pause_dag, unpause_dag
from triggerer.store.access.tokens import find_token
from triggerer.store.dags.listing import count_assets, list_assets, list_dags
from triggerer.store.listing.views import AssetEventView, AssetView, DagView, RunView
from triggerer.store.runs.listing import list_runs

_MOST_SKIPPED = 10_000


class Credentials(Struct, frozen=True):
    """An API token as the password, and a user's name, which is ignored."""

    username: str
    password: str


@dataclass(frozen=True, slots=True)
class AccessToken:
    """The token to send with further requests."""

    access_token: str


class AssetEventOrder(Struct, frozen=True):
    """The event to record. `asset_id`, `uri` or `name` chooses the asset."""

    asset_id: int | None = None
    uri: str | None = None
    name: str | None = None
    extra: dict[str, Any] | None = None
    partition_key: str | None = None


class RunOrder(Struct, frozen=True):
    """The run to trigger."""

    dag_run_id: str | None = None
    logical_date: datetime | None = None
    data_interval_start: datetime | None = None
    data_interval_end: datetime | None = None
    run_after: datetime | None = None
    conf: dict[str, Any] | None = None
    note: str | None = None
    partition_key: str | None = None


class DagOrder(Struct, frozen=True):
    """Whether the DAG shall be paused."""

    is_paused: bool


@post("/auth/token", opt={"role": PUBLIC}, status_code=201)
async def get_token(api: Api, data: JSONBody[Credentials]) -> AccessToken:
    """Return the token that was sent as the password, if it is valid."""
    async with api.use.reading() as session:
        found = await find_token(session, data.password.strip())
    if found is None:
        raise SignInNeeded("the password is no token of ours", hint="triggerer tokens create")
    return AccessToken(data.password.strip())


@creates("/api/v2/assets/events")
async def emit(
    api: Api, access: Caller, data: JSONBody[AssetEventOrder]
) -> Response[dict[str, Any]]:
    """Record an asset event."""
    async with api.use.changing() as session:
        if data.asset_id is not None:
            found = await list_assets(session, asset_id=data.asset_id, limit=1)
            if not found:
                raise NothingThere(f"there is no asset with the id {data.asset_id}")
            asset = found[0].uri
        else:
            asset = data.uri or data.name or ""
        if not asset:
            raise BadRequest("name the asset by asset_id, uri or name")
        event, _ = await emit_once(
            session,
            access.actor(),
            asset,
            Emission(data.extra or {}, partition_key=data.partition_key),
        )
        (stored,) = await list_assets(session, asset=event.asset_uri, limit=1)
    return JsonResponse(_event(without_payloads(access, event), stored))


@reads("/api/v2/assets")
async def assets(
    api: Api,
    limit: Annotated[int, QueryParameter(ge=0, le=1_000)] = 100,
    offset: Annotated[int, QueryParameter(ge=0, le=_MOST_SKIPPED)] = 0,
    name_pattern: FromQuery[str | None] = None,
    uri_pattern: FromQuery[str | None] = None,
) -> dict[str, Any]:
    """List the assets, sorted by name."""
    is_filtered = name_pattern is not None or uri_pattern is not None
    async with api.use.reading() as session:
        most = _MOST_SKIPPED if is_filtered else max(offset + limit, 1)
        found = await list_assets(session, limit=most)
        total = (await count_assets(session)).value
    if is_filtered:
        found = [
            one
            for one in found
            if _is_like(one.name, name_pattern) and _is_like(one.uri, uri_pattern)
        ]
        total = len(found)
    return {
        "assets": [_asset(one) for one in found[offset : offset + limit]],
        "total_entries": max(total, len(found)),
    }


def _is_like(text: str, pattern: str | None) -> bool:
    """Return whether the text contains the pattern, ignoring case. In a pattern, `%` stands for any text.

    The function finds the pieces between the `%` in order. A regular expression would try all ways to divide the text
    among the `%`, which can block the process.
    """
    if pattern is None:
        return True
    text = text.casefold()
    position = 0
    for piece in pattern.casefold().split("%"):
        found = text.find(piece, position)
        if found < 0:
            return False
        position = found + len(piece)
    return True


@creates("/api/v2/dags/{dag_id:str}/dagRuns")
async def trigger(
    api: Api, access: Caller, dag_id: InPath, data: JSONBody[RunOrder]
) -> dict[str, Any]:
    """Trigger a run. The DAG's timetable infers the data interval. A request that sets the interval is refused."""
    unknown = [
        name
        for name in ("data_interval_start", "data_interval_end", "run_after")
        if getattr(data, name) is not None
    ]
    if unknown:
        raise BadRequest(
            f"{', '.join(unknown)} cannot be set",
            hint="set logical_date; the timetable infers the data interval",
        )
    wanted = NewRun(data.dag_run_id, data.conf, data.logical_date, data.partition_key)
    run, _ = await queue_run(api, access, part(dag_id), wanted, None)
    return _run(run, access.name)


@reads("/api/v2/dags/{dag_id:str}/dagRuns/{run_id:str}")
async def run(api: Api, dag_id: InPath, run_id: InPath) -> dict[str, Any]:
    """Show a run."""
    async with api.use.reading() as session:
        found = await list_runs(session, dag=part(dag_id), run_id=part(run_id), limit=1)
        if not found:
            raise UnknownRun(part(dag_id), part(run_id))
    return _run(found[0], None)


@alters("/api/v2/dags/{dag_id:str}")
async def pause(
    api: Api, access: Caller, dag_id: InPath, data: JSONBody[DagOrder]
) -> dict[str, Any]:
    """Pause or unpause a DAG."""
    change = pause_dag if data.is_paused else unpause_dag
    async with api.use.changing() as session:
        await change(session, access.actor(), part(dag_id))
        found = await list_dags(session, dag=part(dag_id), limit=1)
        if not found:
            raise UnknownDag(part(dag_id))
    return _dag(found[0])


def _event(event: AssetEventView, asset: AssetView) -> dict[str, Any]:
    return {
        "id": event.id,
        "asset_id": asset.id,
        "uri": event.asset_uri,
        "name": event.asset_name,
        "group": asset.group,
        "extra": event.extra,
        "source_task_id": event.source_task_id,
        "source_dag_id": event.source_dag_id,
        "source_run_id": event.source_run_id,
        "source_map_index": -1,
        "created_dagruns": [],
        "timestamp": event.timestamp,
        "partition_key": event.partition_key,
    }


def _asset(asset: AssetView) -> dict[str, Any]:
    last = asset.last_event_timestamp
    return {
        "id": asset.id,
        "name": asset.name,
        "uri": asset.uri,
        "group": asset.group,
        "extra": asset.extra,
        "created_at": asset.created_at,
        "updated_at": asset.created_at,
        "scheduled_dags": [],
        "producing_tasks": [],
        "consuming_tasks": [],
        "aliases": [],
        "watchers": [],
        "last_asset_event": None if last is None else {"id": None, "timestamp": last},
    }


def _run(run: RunView, user: str | None) -> dict[str, Any]:
    duration = (
        None
        if run.started_at is None or run.ended_at is None
        else (run.ended_at - run.started_at).total_seconds()
    )
    return {
        "dag_run_id": run.run_id,
        "dag_id": run.dag_id,
        "dag_display_name": run.dag_id,
        "logical_date": run.logical_date,
        "queued_at": run.queued_at,
        "start_date": run.started_at,
        "end_date": run.ended_at,
        "duration": duration,
        "data_interval_start": run.data_interval_start,
        "data_interval_end": run.data_interval_end,
        "run_after": run.run_after,
        "last_scheduling_decision": None,
        "run_type": run.run_type,
        # Airflow has no state for a cancelled run, and shows such a run as failed.
        "state": "failed" if run.state == "cancelled" else run.state,
        "triggered_by": "rest_api" if run.run_type == "manual" else None,
        "triggering_user_name": user,
        "conf": run.params,
        "note": None,
        "dag_versions": [],
        "bundle_version": None,
        "partition_key": run.partition_key,
    }


def _dag(dag: DagView) -> dict[str, Any]:
    return {
        "dag_id": dag.dag_id,
        "dag_display_name": dag.dag_id,
        "is_paused": dag.is_paused,
        "is_stale": dag.is_stale,
        "last_parsed_time": None,
        "last_expired": None,
        "bundle_name": None,
        "bundle_version": None,
        "relative_fileloc": dag.path,
        "fileloc": dag.path,
        "file_token": dag.path,
        "description": dag.description,
        "timetable_summary": None,
        "timetable_description": None,
        "timetable_partitioned": False,
        "timetable_periodic": dag.next_run_after is not None,
        "tags": [
            {"name": tag, "dag_id": dag.dag_id, "dag_display_name": dag.dag_id} for tag in dag.tags
        ],
        "max_active_tasks": 16,
        "max_active_runs": dag.max_active_runs,
        "max_consecutive_failed_dag_runs": 0,
        "has_task_concurrency_limits": False,
        "has_import_errors": dag.file_error is not None,
        "is_backfillable": dag.next_run_after is not None,
        "next_dagrun_run_after": dag.next_run_after,
        "owners": ["triggerer"],
    }


def airflow_router() -> Router:
    """Return a new router with these routes."""
    handlers = [get_token, emit, assets, trigger, run, pause]
    return Router("/", route_handlers=handlers, tags=["Airflow"])
