"""`triggerer plan`: what other DAG files would change, before they are put in place."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from triggerer.cli import options
from triggerer.cli.output import counted, print_json, print_note, text
from triggerer.cli.session import read, settings_for
from triggerer.cli.tables import Column, Kind, print_table

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

    from triggerer.operations.plan import FolderPlan
    from triggerer.scheduler.replay import Replayed


def plan(
    dags_folder: Annotated[
        Path, typer.Option("--dags-folder", metavar="DIR", help="The new files.")
    ],
    dag: options.Dag = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="Where the history begins; ISO 8601."),
    ] = None,
    events: Annotated[
        int, typer.Option("--events", min=1, help="At most so many events, the newest.")
    ] = 10_000,
    limit: options.Limit = 100,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Show which runs other DAG files would have made, and what they change for what is queued now.

    Nothing is changed. Exit code 1 if a file of the folder cannot be read.
    """
    begin = options.parse_instant(since, "--since")
    import anyio

    from triggerer.dag_processing import ParsedFolder, parse_once
    from triggerer.operations.connections import share_connections

    settings = settings_for(config, dags_folder=dags_folder)
    folder = settings.get_dags_folder()
    share_connections(settings)

    async def parse() -> ParsedFolder:
        return await parse_once(
            folder,
            allowed_modules=settings.core.allowed_trigger_modules,
            file_timeout=settings.dag_processor.parse_timeout,
            pools=settings.pools,
        )

    parsed = anyio.run(parse)

    async def ask(session: AsyncSession) -> FolderPlan:
        from triggerer.operations.plan import plan_folder

        return await plan_folder(session, parsed, since=begin, events=events, dag=dag)

    found = read(config, ask)
    for error in found.errors:
        print_note(f"error: {error}")
    shown = replace(found, dags=found.dags[:limit]) if limit else found
    if json:
        values = {one.name: getattr(shown, one.name) for one in fields(shown)}
        print_json(values | {"errors": [error.to_json() for error in shown.errors]})
    else:
        _print(shown, limit)
    if found.errors:
        raise typer.Exit(1)


def _print(found: FolderPlan, limit: int) -> None:
    typer.echo(
        f"{counted(found.events, 'event')} from {text(found.since)} to {text(found.until)};"
        " runs take no time, nothing is paused"
    )
    print_table(
        (
            "dag_id",
            "change",
            "runs before",
            "runs after",
            "queued now",
            "due now",
            "due after",
            Column("next run", Kind.MINOR),
            Column("no longer waited for", Kind.MINOR),
            Column("then waits for", Kind.TEXT),
        ),
        (
            (
                row.dag_id,
                row.change,
                _count(row.before),
                _count(row.after),
                f"{row.queued}{'+' if row.is_counted_short else ''}",
                row.due_before,
                row.due_after,
                row.next_after,
                row.dropped or None,
                row.error or "; ".join(row.holds_after) or None,
            )
            for row in found.dags
        ),
        empty="No DAGs.",
        limit=limit,
    )


def _count(replayed: Replayed | None) -> str | None:
    if replayed is None:
        return None
    return f"{len(replayed.runs)}{'+' if replayed.is_cut_short else ''}"
