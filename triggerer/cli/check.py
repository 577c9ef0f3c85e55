"""`triggerer check`: imports every DAG file, connects to the brokers, and prints each problem with file and line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from triggerer.cli.terminal import options
from triggerer.cli.terminal.output import counted, print_json, print_note
from triggerer.cli.terminal.session import folder_of, settings_for

if TYPE_CHECKING:
    from pathlib import Path

    from triggerer.config import Settings
    from triggerer.dag_processing import CheckedGuarantees, CheckedSources, ParsedFolder
    from triggerer.dag_processing.guarantees import CheckedGuarantee

Offline = Annotated[bool, typer.Option("--offline", help="Do not connect to any broker.")]


def check(
    dags_folder: options.DagsFolder = None,
    offline: Offline = False,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Check the settings, the DAG files and the brokers, without a database; exit code 1 if something is wrong.

    Prints each watcher's delivery guarantee, from the message to the asset event. If a watcher requires a stronger
    guarantee than it gets, that is an error. If a broker does not answer, that is only a warning, because the service
    may run on another machine.
    """
    settings = settings_for(config, dags_folder=dags_folder)
    _check_settings(settings)
    folder = folder_of(settings)
    parsed, sources, guarantees = _inspect(settings, folder, offline=offline)
    # A source that cannot be used is reported twice, in `sources` and in `guarantees`. `dict.fromkeys` drops the
    # repeat.
    errors = tuple(dict.fromkeys((*parsed.errors, *sources.errors, *guarantees.errors)))
    warnings = (*parsed.warnings, *sources.unavailable, *guarantees.warnings)
    dags = [dag.dag_id for file in parsed.files for dag in file.dags]
    if json:
        print_json(
            {
                "files": [file.path for file in parsed.files],
                "dags": dags,
                "watchers": [_guarantee_to_json(one) for one in guarantees.results],
                "errors": [error.to_json() for error in errors],
                "warnings": [warning.to_json() for warning in warnings],
            }
        )
    else:
        for one in guarantees.results:
            if one.promised is not None:
                watcher = one.watcher
                typer.echo(f"{watcher.asset_name}/{watcher.name}: {one.promised}")
        for warning in warnings:
            print_note(f"warning: {warning}")
        for error in errors:
            print_note(f"error: {error}")
        watchers = sum(len(file.watchers) for file in parsed.files)
        typer.echo(
            f"{folder}: {counted(len(parsed.files), 'file')}, {counted(len(dags), 'DAG')},"
            f" {counted(watchers, 'watcher')}, {counted(len(errors), 'error')},"
            f" {counted(len(warnings), 'warning')}"
        )
    if errors:
        raise typer.Exit(1)


def _inspect(
    settings: Settings, folder: Path, *, offline: bool
) -> tuple[ParsedFolder, CheckedSources, CheckedGuarantees]:
    """Parse the folder and compute each watcher's guarantee. Unless `offline`, connect to the broker of each stream."""
    import logging

    import anyio

    from triggerer.dag_processing import CheckedSources, check_guarantees, check_sources, parse_once
    from triggerer.operations.connections import share_connections

    async def check_folder() -> tuple[ParsedFolder, CheckedSources, CheckedGuarantees]:
        allowed = settings.core.allowed_trigger_modules
        parsed = await parse_once(
            folder,
            allowed_modules=allowed,
            file_timeout=settings.dag_processor.parse_timeout,
            pools=settings.pools,
        )
        watchers = [watcher for file in parsed.files for watcher in file.watchers]
        sources = CheckedSources()
        if not offline:
            sources = await check_sources(watchers, dags_folder=folder, allowed_modules=allowed)
        guarantees = await check_guarantees(
            watchers,
            dags_folder=folder,
            allowed_modules=allowed,
            ack_timeout=settings.triggerer.shared_stream_ack_timeout,
            ask=not offline,
        )
        return parsed, sources, guarantees

    share_connections(settings)
    # The broker clients log each attempt to connect. Users see only the outcome, so turn logging off.
    logging.disable()
    try:
        return anyio.run(check_folder)
    finally:
        logging.disable(logging.NOTSET)


def _guarantee_to_json(one: CheckedGuarantee) -> dict[str, Any]:
    watcher, promised = one.watcher, one.promised
    return {
        "asset_name": watcher.asset_name,
        "name": watcher.name,
        "guarantee": watcher.guarantee,
        "promises": None if promised is None else promised.guarantee.value,
        "reason": None if promised is None else promised.reason,
        "warnings": [] if promised is None else [str(warning) for warning in promised.warnings],
    }


def _check_settings(settings: Settings) -> None:
    """Check Spark's mode, the database's URL and the targets of notifications.

    Raises:
        ConfigurationError: A service would raise this error when it starts.
    """
    from triggerer.worker.spark.settings import mode_of

    mode_of(settings.spark)
    if settings.sources["database", "url"] != "default":
        from triggerer.store.database.urls import parse_database_url

        parse_database_url(settings.database.url, home=settings.core.home)
    if settings.notify.urls:
        import anyio

        from triggerer.notifications.sending import check_targets

        anyio.run(check_targets, settings.resolve_targets())
