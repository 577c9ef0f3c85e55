"""`triggerer check`: imports every DAG file and says what is wrong where."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from triggerer.cli import options
from triggerer.cli.output import counted, print_json, print_note
from triggerer.cli.session import folder_of, settings_for

if TYPE_CHECKING:
    from triggerer.config import Settings
    from triggerer.dag_processing import ParsedFolder


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(check)


def check(
    dags_folder: options.DagsFolder = None,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Check the settings, and import every DAG file, without a database; exit code 1 if something is wrong."""
    import anyio

    from triggerer.dag_processing import parse_once

    settings = settings_for(config, dags_folder=dags_folder)
    _check_settings(settings)
    folder = folder_of(settings)

    async def parse() -> ParsedFolder:
        return await parse_once(
            folder,
            allowed_modules=settings.core.allowed_trigger_modules,
            file_timeout=settings.dag_processor.parse_timeout,
        )

    parsed = anyio.run(parse)
    dags = [dag.dag_id for file in parsed.files for dag in file.dags]
    watchers = sum(len(file.watchers) for file in parsed.files)
    if json:
        print_json(
            {
                "files": [file.path for file in parsed.files],
                "dags": dags,
                "errors": [error.to_json() for error in parsed.errors],
                "warnings": [warning.to_json() for warning in parsed.warnings],
            }
        )
    else:
        for warning in parsed.warnings:
            print_note(f"warning: {warning}")
        for error in parsed.errors:
            print_note(f"error: {error}")
        typer.echo(
            f"{folder}: {counted(len(parsed.files), 'file')}, {counted(len(dags), 'DAG')},"
            f" {counted(watchers, 'watcher')}, {counted(len(parsed.errors), 'error')},"
            f" {counted(len(parsed.warnings), 'warning')}"
        )
    if parsed.errors:
        raise typer.Exit(1)


def _check_settings(settings: Settings) -> None:
    """Refuse what a service would refuse when it starts, as far as that is seen without starting one."""
    from triggerer.spark.settings import mode_of

    mode_of(settings.spark)
    if settings.sources["database", "url"] != "default":
        from triggerer.store.urls import parse_database_url

        parse_database_url(settings.database.url, home=settings.core.home)
