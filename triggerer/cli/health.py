"""`triggerer health`: whether each part of the service is alive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import typer

from triggerer.cli.terminal import options
from triggerer.cli.terminal.output import print_json, print_note
from triggerer.cli.terminal.session import with_database
from triggerer.cli.terminal.tables import Column, Kind, print_table
from triggerer.domain.instants import readable
from triggerer.processes.instance_ids import process_of

if TYPE_CHECKING:
    from triggerer.operations.health import Health
    from triggerer.store.audit.cleanings import CleaningState
    from triggerer.store.database.transactions import Database


def health(json: options.Json = False, config: options.Config = None) -> None:
    """Show each part of the service with its heartbeat; exit code 1 if a part is missing or silent."""

    async def ask(database: Database) -> Health:
        from triggerer.operations.health import read_health

        return await read_health(database.reading)

    found = with_database(config, ask)
    if json:
        print_json(found)
    else:
        rows = [
            (part.kind, one.state, one.heartbeat_at, one.host, one.pid, one.release)
            for part in found.parts
            for one in part.instances
        ]
        missing = [
            (part.kind, "missing", None, None, None, None)
            for part in found.parts
            if not part.instances
        ]
        columns = (
            "part",
            "state",
            "heartbeat",
            Column("host", Kind.TEXT),
            "pid",
            Column("release", Kind.MINOR),
        )
        print_table(columns, [*rows, *missing], empty="")
        if found.cleaning is not None:
            _print_cleaning(found.cleaning)
        if found.database is not None:
            print_note(f"triggerer: {found.database}")
    if not found.is_healthy:
        raise typer.Exit(1)


_KINDS: Final = {
    "asset_events": "events",
    "audit": "rows of the audit",
    "parked": "parked messages",
}


def _print_cleaning(state: CleaningState) -> None:
    typer.echo()
    if state.succeeded_at is not None:
        gone = [
            f"{number} {kind.replace('_', ' ')}" for kind, number in state.deleted.items() if number
        ]
        deleted = f"; deleted: {', '.join(gone)}" if gone else ""
        typer.echo(f"last cleaning: {readable(state.succeeded_at)}{deleted}")
    elif state.error is None:
        typer.echo("last cleaning: none yet")
    if state.holder is not None:
        typer.echo(f"cleaning now: {process_of(state.holder)}")
    if state.error is not None and state.failed_at is not None:
        print_note(f"triggerer: the cleaning of {readable(state.failed_at)} failed: {state.error}")
