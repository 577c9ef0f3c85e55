"""`triggerer assets queued`: events that wait for DAGs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from triggerer.cli import options
from triggerer.cli.output import counted, print_json, wrong_use
from triggerer.cli.session import read, write
from triggerer.cli.tables import Column, Kind, print_table

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

    from triggerer.store.queries.listing.views import QueuedEventView

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def list_(
    dag: options.Dag = None,
    asset: options.Asset = None,
    limit: options.Limit = 100,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """List the events that wait, by DAG, oldest first."""

    async def ask(session: AsyncSession) -> list[QueuedEventView]:
        from triggerer.operations.queued_events import list_queued_events

        return await list_queued_events(session, limit=limit, dag=dag, asset=asset)

    found = read(config, ask)
    if json:
        print_json(found)
        return
    print_table(
        (
            "dag_id",
            "asset",
            "event",
            "queued at",
            Column("partition key", Kind.TEXT),
            Column("uri", Kind.MINOR),
        ),
        (
            (
                row.dag_id,
                row.asset_name,
                row.asset_event_id,
                row.queued_at,
                row.partition_key,
                row.asset_uri,
            )
            for row in found
        ),
        empty="No event waits.",
        limit=limit,
    )


@app.command()
def delete(
    dag: options.Dag = None,
    asset: options.Asset = None,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Delete what waits for a DAG, of an asset, or both: no run will get it. The events stay."""
    if dag is None and asset is None:
        wrong_use("--dag, --asset or both have to be given")

    async def change(session: AsyncSession) -> int:
        from triggerer.operations.queued_events import delete_queued_events

        return await delete_queued_events(session, dag=dag, asset=asset)

    deleted = write(config, change)
    if json:
        print_json({"deleted": deleted})
    else:
        typer.echo(f"{counted(deleted, 'queued event')} deleted")
