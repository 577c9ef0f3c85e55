"""`triggerer assets queued`: lists and deletes asset events that wait for DAGs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from triggerer.cli.terminal import completing, options
from triggerer.cli.terminal.output import check_state, counted, print_answer, wrong_use
from triggerer.cli.terminal.session import read_list, this_user, write
from triggerer.cli.terminal.tables import Column, Kind, print_list

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

    from triggerer.store.listing.views import QueuedEventView

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def list_(
    dag: options.Dag = None,
    asset: options.Asset = None,
    state: options.State = None,
    limit: options.Limit = 100,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """List the asset events that wait for DAGs, sorted by DAG, then oldest first.

    --state selects by the state of the DAG: active, paused or stale.
    """
    check_state(state, options.DAG_STATES)

    async def ask(session: AsyncSession) -> list[QueuedEventView]:
        from triggerer.operations.queued_events import list_queued_events

        return await list_queued_events(session, limit=limit, dag=dag, asset=asset, state=state)

    found = read_list(config, ask, dag=dag, asset=asset)
    print_list(
        found,
        (
            "dag_id",
            "asset",
            "event",
            "queued at",
            Column("partition key", Kind.TEXT),
            Column("uri", Kind.MINOR),
        ),
        lambda row: (
            row.dag_id,
            row.asset_name,
            row.asset_event_id,
            row.queued_at,
            row.partition_key,
            row.asset_uri,
        ),
        json=json,
        empty="No event waits.",
        limit=limit,
    )


@app.command()
def delete(
    dag: Annotated[
        str | None,
        typer.Option(
            "--dag",
            metavar="DAG_ID",
            help="Delete only what waits for this DAG.",
            autocompletion=completing.dag_ids,
        ),
    ] = None,
    asset: Annotated[
        str | None,
        typer.Option(
            "--asset",
            metavar="ASSET",
            help="Delete only events of this asset (name or URI).",
            autocompletion=completing.asset_names,
        ),
    ] = None,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Delete the queued events of a DAG or of an asset. With --dag and --asset, delete the asset's events for the DAG.

    The asset events themselves stay, but no run will take them from the queue.
    """
    if dag is None and asset is None:
        wrong_use("give --dag, --asset or both")

    async def change(session: AsyncSession) -> int:
        from triggerer.operations.queued_events import delete_queued_events

        return await delete_queued_events(session, this_user(), dag=dag, asset=asset)

    deleted = write(config, change)
    print_answer({"deleted": deleted}, f"{counted(deleted, 'queued event')} deleted", json=json)
