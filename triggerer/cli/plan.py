"""`triggerer plan`: shows the changes that new DAG files would make, before you deploy the files."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from triggerer.cli.terminal import options
from triggerer.cli.terminal.output import print_json, print_note
from triggerer.cli.terminal.session import settings_for, with_database

if TYPE_CHECKING:
    from triggerer.dag_processing import ParsedFolder
    from triggerer.operations.planning.plan import FolderPlan
    from triggerer.store.database.transactions import Database


def plan(
    dags_folder: Annotated[
        Path, typer.Option("--dags-folder", metavar="DIR", help="Folder with the new DAG files.")
    ],
    dag: options.Dag = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="TIME",
            help="Replay asset events from this time on, for example 2026-11-01. Default: a week ago, or the time of "
            "the oldest replayed event if that time is earlier.",
        ),
    ] = None,
    events: Annotated[
        int,
        typer.Option("--events", min=1, help="Replay at most this number of events, the newest."),
    ] = 10_000,
    limit: options.Limit = 100,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Show what other DAG files would change: DAGs, watchers, assets that nothing updates, and runs.

    The command replays the stored asset events against the new files and compares the runs. It changes nothing. Exit
    code 1 if a file of the folder cannot be read.
    """
    begin = options.parse_instant(since, "--since")
    parsed = _parse(config, dags_folder)

    async def ask(database: Database) -> FolderPlan:
        from triggerer.operations.planning.plan import plan_folder

        return await plan_folder(database, parsed, since=begin, events=events, dag=dag)

    found = with_database(config, ask)
    for error in found.errors:
        print_note(f"error: {error}")
    if json:
        shown = replace(found, dags=found.dags[:limit]) if limit else found
        values = {one.name: getattr(shown, one.name) for one in fields(shown)}
        print_json(values | {"errors": [error.to_json() for error in shown.errors]})
    else:
        from triggerer.cli.plan_report import print_plan

        print_plan(found, dag, limit)
    if found.errors:
        raise typer.Exit(1)


def _parse(config: Path | None, dags_folder: Path) -> ParsedFolder:
    import anyio
    import anyio.to_thread

    from triggerer.dag_processing import parse_once
    from triggerer.operations.connections import share_connections

    settings = settings_for(config, dags_folder=dags_folder)
    folder = settings.get_dags_folder()
    share_connections(settings)

    async def parse() -> ParsedFolder:
        async with anyio.create_task_group() as tasks:
            # Another process parses the files. Meanwhile, import the next step's module, which takes half a second.
            importing = partial(import_module, "triggerer.operations.planning.plan")
            tasks.start_soon(anyio.to_thread.run_sync, importing)
            parsed = await parse_once(
                folder,
                allowed_modules=settings.core.allowed_trigger_modules,
                file_timeout=settings.dag_processor.parse_timeout,
                pools=settings.pools,
            )
        return parsed  # noqa: RET504  (for mypy, a task group may swallow an error)

    return anyio.run(parse)
