"""`triggerer assets delete` and `triggerer dags delete`: for assets and DAGs that no DAG file declares."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from triggerer.cli.terminal import completing, options
from triggerer.cli.terminal.output import counted, print_answer
from triggerer.cli.terminal.session import read, this_user, with_database
from triggerer.errors import MoveRefused

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

    from triggerer.operations.deleting import DeletedAsset, DeletedDag
    from triggerer.store.database.transactions import Database


def delete_asset(
    asset: Annotated[
        str,
        typer.Argument(
            metavar="ASSET", help="Name or URI of the asset.", autocompletion=completing.asset_names
        ),
    ],
    with_queued: Annotated[
        bool,
        typer.Option(
            "--with-queued", help="Delete the asset even if its events still wait for DAGs."
        ),
    ] = False,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Delete an asset that no DAG file declares, with its events."""

    async def change(database: Database) -> DeletedAsset:
        from triggerer.operations.deleting import delete_asset

        return await delete_asset(database, this_user(), asset, with_queued=with_queued)

    deleted = with_database(config, change)
    events = counted(deleted.asset_events, "event")
    queued = counted(deleted.queued_events, "queued event")
    print_answer(
        deleted,
        f"{deleted.asset_name}: deleted, with {events}"
        + (f" and {queued}" if deleted.queued_events else ""),
        json=json,
    )


def delete_dag(
    dag_id: options.DagId,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Delete a stale DAG, its runs and their logs. The asset events that its tasks emitted stay."""
    if not yes:

        async def ask(session: AsyncSession) -> int:
            from triggerer.operations.deleting import check_deletable

            return (await check_deletable(session, dag_id)).runs

        runs = counted(read(config, ask), "run")
        if not sys.stdin.isatty():
            raise MoveRefused(
                f"the DAG {dag_id!r} would be deleted, with {runs}, but a confirmation needs a terminal",
                hint="add --yes",
            )
        typer.confirm(f"Delete the DAG {dag_id!r}, with {runs}?", abort=True, err=True)

    async def change(database: Database) -> DeletedDag:
        from triggerer.operations.deleting import delete_dag

        return await delete_dag(database, this_user(), dag_id)

    deleted = with_database(config, change)
    logs = f", {counted(deleted.logs_elsewhere, 'log')} elsewhere" if deleted.logs_elsewhere else ""
    print_answer(
        deleted, f"{dag_id}: deleted, with {counted(deleted.runs, 'run')}{logs}", json=json
    )
