"""`triggerer check`: imports every DAG file, asks the brokers, and says what is wrong where."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from triggerer.cli import options
from triggerer.cli.output import counted, print_json, print_note
from triggerer.cli.session import folder_of, settings_for

if TYPE_CHECKING:
    from triggerer.config import Settings
    from triggerer.dag_processing import CheckedSources, ParsedFolder

Offline = Annotated[bool, typer.Option("--offline", help="Ask no broker.")]


def check(
    dags_folder: options.DagsFolder = None,
    offline: Offline = False,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Check the settings, the DAG files and the brokers, without a database; exit code 1 if something is wrong.

    A broker that does not answer is a warning: it may be reachable from where the service runs.
    """
    import logging

    import anyio

    from triggerer.abc import install_connections
    from triggerer.dag_processing import CheckedSources, check_sources, parse_once

    settings = settings_for(config, dags_folder=dags_folder)
    _check_settings(settings)
    folder = folder_of(settings)

    async def look() -> tuple[ParsedFolder, CheckedSources]:
        allowed = settings.core.allowed_trigger_modules
        parsed = await parse_once(
            folder, allowed_modules=allowed, file_timeout=settings.dag_processor.parse_timeout
        )
        if offline:
            return parsed, CheckedSources()
        watchers = [watcher for file in parsed.files for watcher in file.watchers]
        return parsed, await check_sources(watchers, dags_folder=folder, allowed_modules=allowed)

    install_connections(settings.get_connection)
    # Clients of brokers log each attempt; what came of it is in the answer.
    logging.disable()
    try:
        parsed, sources = anyio.run(look)
    finally:
        logging.disable(logging.NOTSET)
    errors = (*parsed.errors, *sources.errors)
    warnings = (*parsed.warnings, *sources.unavailable)
    dags = [dag.dag_id for file in parsed.files for dag in file.dags]
    watchers = sum(len(file.watchers) for file in parsed.files)
    if json:
        print_json(
            {
                "files": [file.path for file in parsed.files],
                "dags": dags,
                "errors": [error.to_json() for error in errors],
                "warnings": [warning.to_json() for warning in warnings],
            }
        )
    else:
        for warning in warnings:
            print_note(f"warning: {warning}")
        for error in errors:
            print_note(f"error: {error}")
        typer.echo(
            f"{folder}: {counted(len(parsed.files), 'file')}, {counted(len(dags), 'DAG')},"
            f" {counted(watchers, 'watcher')}, {counted(len(errors), 'error')},"
            f" {counted(len(warnings), 'warning')}"
        )
    if errors:
        raise typer.Exit(1)


def _check_settings(settings: Settings) -> None:
    """Refuse what a service would refuse when it starts, as far as that is seen without starting one."""
    from triggerer.spark.settings import mode_of

    mode_of(settings.spark)
    if settings.sources["database", "url"] != "default":
        from triggerer.store.engine.urls import parse_database_url

        parse_database_url(settings.database.url, home=settings.core.home)
