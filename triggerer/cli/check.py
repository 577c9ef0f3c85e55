"""`triggerer check`: imports every DAG file and says what is wrong where."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from triggerer.cli import options
from triggerer.cli.output import print_json, print_note
from triggerer.cli.session import settings_for
from triggerer.errors import ConfigurationError

if TYPE_CHECKING:
    from triggerer.dag_processing import ParsedFolder


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(check)


def check(
    dags_folder: options.DagsFolder = None,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Import every DAG file, without a database; exit code 1 if something is wrong."""
    import anyio

    from triggerer.dag_processing import parse_once

    settings = settings_for(config, dags_folder=dags_folder)
    folder = settings.core.dags_folder
    if not folder.is_dir():
        raise ConfigurationError(
            f"there is no DAGs folder {folder}", hint="name it with --dags-folder"
        )

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
            f"{folder}: {len(parsed.files)} files, {len(dags)} DAGs, {watchers} watchers,"
            f" {len(parsed.errors)} errors, {len(parsed.warnings)} warnings"
        )
    if parsed.errors:
        raise typer.Exit(1)
