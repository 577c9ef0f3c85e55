"""`triggerer assets`: lists assets and their events, and emits events by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from triggerer.cli import queued
from triggerer.cli.deleting import delete_asset
from triggerer.cli.terminal import completing, options
from triggerer.cli.terminal.output import check_state, print_answer, text
from triggerer.cli.terminal.session import read_list, this_user, write
from triggerer.cli.terminal.tables import Column, Kind, print_list

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

    from triggerer.store.listing.views import AssetEventView, AssetView

_ASSET_STATES = ("declared", "undeclared")
_EVENT_STATES = ("queued", "consumed", "unused")

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
app.command("delete")(delete_asset)
app.add_typer(queued.app, name="queued", help="Asset events that wait for DAGs: list, delete.")


@app.command("list")
def list_(
    asset: options.Asset = None,
    dag: options.Dag = None,
    state: options.State = None,
    limit: options.Limit = 100,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """List assets; with --dag, only the assets that the DAG waits for.

    States: declared (a DAG file declares the asset), undeclared (no DAG file declares the asset).
    """
    check_state(state, _ASSET_STATES)

    async def ask(session: AsyncSession) -> list[AssetView]:
        from triggerer.store.dags.listing import list_assets

        return await list_assets(session, limit=limit, asset=asset, dag=dag, state=state)

    found = read_list(config, ask, dag=dag, asset=asset)
    print_list(
        found,
        (
            "name",
            "uri",
            Column("group", Kind.MINOR),
            Column("declared in", Kind.MINOR),
            "last event",
        ),
        lambda row: (row.name, row.uri, row.group, row.declared_in, row.last_event_timestamp),
        json=json,
        empty="No assets.",
        limit=limit,
    )


@app.command()
def events(
    asset: options.Asset = None,
    dag: options.Dag = None,
    state: options.State = None,
    limit: options.Limit = 100,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """List asset events, newest first; with --dag, only the events that runs of the DAG emitted.

    States: queued (the event waits for a run of a DAG), consumed (each DAG that waited has a run with the event),
    unused (no DAG waited for the event).
    """
    check_state(state, _EVENT_STATES)

    async def ask(session: AsyncSession) -> list[AssetEventView]:
        from triggerer.store.events.listing import list_asset_events

        return await list_asset_events(session, limit=limit, asset=asset, dag=dag, state=state)

    found = read_list(config, ask, dag=dag, asset=asset)
    print_list(
        found,
        ("id", "asset", "timestamp", Column("source", Kind.TEXT), Column("extra", Kind.TEXT)),
        lambda row: (row.id, row.asset_name, row.timestamp, _source(row), _shortened(row.extra)),
        json=json,
        empty="No events.",
        limit=limit,
    )


@app.command()
def emit(
    asset: Annotated[
        str,
        typer.Argument(
            metavar="ASSET", help="Name or URI of the asset.", autocompletion=completing.asset_names
        ),
    ],
    extra: Annotated[
        str | None,
        typer.Option(
            "--extra", metavar="JSON", help='The event\'s extra data, for example {"rows": 12}.'
        ),
    ] = None,
    partition_key: Annotated[
        str | None,
        typer.Option(
            "--partition-key",
            metavar="KEY",
            help="Partition key of the event, for example 2026-03-10.",
        ),
    ] = None,
    create: Annotated[
        bool,
        typer.Option("--create", help="Create the asset if no DAG declares it."),
    ] = False,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Emit an event for an asset, as if a task or a watcher had updated it."""
    values = {} if extra is None else options.parse_extra(extra, "--extra")

    async def change(session: AsyncSession) -> dict[str, Any]:
        from triggerer.operations.emitting import emit_event

        return await emit_event(
            session, this_user(), asset, values, partition_key=partition_key, create=create
        )

    emitted = write(config, change)
    print_answer(emitted, f"{emitted['asset_name']}: emitted event {emitted['id']}", json=json)


def _source(row: AssetEventView) -> str | None:
    if row.source_watcher:
        return f"watcher {row.source_watcher}"
    if row.source_dag_id:
        return f"{row.source_dag_id}.{row.source_task_id} {row.source_run_id}"
    return None


def _shortened(extra: dict[str, Any] | None) -> str:
    whole = text(extra)
    return whole if len(whole) <= 120 else whole[:119] + "…"
