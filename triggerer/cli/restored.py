"""`triggerer db restored`: sets watchers back after the database was restored from a backup."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from triggerer.cli.terminal import options
from triggerer.cli.terminal.output import print_json
from triggerer.cli.terminal.session import settings_for, this_user, with_database
from triggerer.cli.terminal.tables import Column, Kind, print_table
from triggerer.domain.instants import readable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from triggerer.config import Settings
    from triggerer.operations.restoring.later_runs import LaterRun
    from triggerer.operations.restoring.marking import Restored
    from triggerer.operations.restoring.sources import Source
    from triggerer.store.database.transactions import Database
    from triggerer.store.watchers.restored import RestoredWatcher


def restored(
    backup_time: Annotated[
        str,
        typer.Option(
            "--backup-time",
            metavar="TIME",
            help="When the backup was begun, such as 2026-11-24T02:00:00Z. An earlier time is safe.",
        ),
    ],
    margin: Annotated[
        str,
        typer.Option(
            "--margin",
            metavar="DURATION",
            help="Read logs from this much earlier, such as PT6H or 2d. It must cover the age of the oldest message"
            " that was published but not processed when the backup was begun.",
        ),
    ] = "PT1H",
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Let watchers of logs (Kafka) read messages again, after a restore of the database. Stop every service first.

    The broker's positions are newer than the backup. Without this command, watchers would fail or skip messages.

    At the next start of the service, each watcher of a log (Kafka) first reads messages again: all that were published
    since the backup time minus --margin. A message that already has an event creates no second event.

    The command prints the messages that each watcher will read again. It also prints the runs that will execute again,
    if their logs are on this machine. The command can be repeated.
    """
    instant = options.parse_instant(backup_time, "--backup-time")
    assert instant is not None
    earlier = options.parse_duration(margin, "--margin")
    settings = settings_for(config)

    async def work(database: Database) -> tuple[Restored, list[LaterRun]]:
        from triggerer.operations.restoring.later_runs import find_later_runs
        from triggerer.operations.restoring.marking import mark_restored

        done = await mark_restored(database, this_user(), instant, margin=earlier)
        async with database.reading() as session:
            return done, await find_later_runs(session, settings.core.home, instant)

    done, later = with_database(config, work)
    sources = _find_sources(settings, done)
    if json:
        print_json(_as_json(done, later, sources))
    else:
        _print(done, later, sources, settings.core.home / "logs")


def _find_sources(settings: Settings, done: Restored) -> Mapping[str, Source]:
    """Return each stream's source. The triggers' code is executed in this process, with the local settings."""
    import logging

    import anyio

    from triggerer.operations.connections import share_connections
    from triggerer.operations.consumer_lag import Asked
    from triggerer.operations.restoring.sources import find_sources

    asked = [
        Asked(one.stream_id, one.trigger, one.kwargs)
        for one in done.watchers
        if one.start is not None
    ]

    async def ask() -> Mapping[str, Source]:
        return await find_sources(
            asked,
            dags_folder=settings.core.dags_folder,
            allowed_modules=settings.core.allowed_trigger_modules,
        )

    share_connections(settings)
    logging.disable()
    try:
        return anyio.run(ask)
    finally:
        logging.disable(logging.NOTSET)


_TEXTS: Final = {
    "log": "from {start} on",
    "queue": "nothing that was acknowledged after the backup",
    "stored": "from its position in the backup on",
    "live": "nothing: it receives what comes while it runs",
    "unknown": "from {start} on, if it is a log: {error}",
}


def _kind(one: RestoredWatcher, sources: Mapping[str, Source]) -> str:
    if one.start is not None:
        return str(sources[one.stream_id].kind)
    return "stored" if one.has_bookmark else "live"


def _error(one: RestoredWatcher, sources: Mapping[str, Source]) -> str | None:
    return None if one.start is None else sources[one.stream_id].error


def _comes_back(one: RestoredWatcher, sources: Mapping[str, Source]) -> str:
    start = None if one.start is None else readable(one.start)
    return _TEXTS[_kind(one, sources)].format(start=start, error=_error(one, sources))


def _set_back_to(one: RestoredWatcher, sources: Mapping[str, Source]) -> datetime | None:
    return one.start if _kind(one, sources) in {"log", "unknown"} else None


def _as_json(
    done: Restored, later: list[LaterRun], sources: Mapping[str, Source]
) -> dict[str, Any]:
    watchers = [
        {
            "asset_name": one.asset_name,
            "name": one.name,
            "trigger": one.trigger,
            "stream": one.stream,
            "source": _kind(one, sources),
            "set_back_to": _set_back_to(one, sources),
            "comes_back": _comes_back(one, sources),
            "error": _error(one, sources),
        }
        for one in done.watchers
    ]
    return {
        "database": done.database,
        "backup_time": done.backup_time,
        "start": done.start,
        "watchers": watchers,
        "later_runs": [asdict(one) for one in later],
    }


def _print(
    done: Restored, later: list[LaterRun], sources: Mapping[str, Source], logs: Path
) -> None:
    typer.echo(f"{done.database}: restored, as it was at {readable(done.backup_time)}")
    typer.echo("At the next start these messages come again, before any newer one:")
    print_table(
        ("asset", "watcher", "source", Column("comes again", Kind.TEXT)),
        (
            (one.asset_name, one.name, _kind(one, sources), _comes_back(one, sources))
            for one in done.watchers
        ),
        empty="The backup has no watchers.",
    )
    typer.echo(
        "Runs that executed after the backup, according to their logs, and will execute again:"
    )
    print_table(
        ("DAG", "run", Column("state in the backup", Kind.MINOR), "log changed"),
        ((one.dag_id, one.run_id, one.state, one.log_changed_at) for one in later),
        empty=f"none in {logs}; look on the machines of other executors too",
    )
