"""`triggerer health`: whether each part of the service is alive."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from triggerer.cli.terminal import options
from triggerer.cli.terminal.output import print_json, print_note
from triggerer.cli.terminal.session import with_database
from triggerer.cli.terminal.tables import Column, Kind, print_table

if TYPE_CHECKING:
    from triggerer.operations.health import Health
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
        if found.database is not None:
            print_note(f"triggerer: {found.database}")
    if not found.is_healthy:
        raise typer.Exit(1)
