"""`triggerer config show`: the settings in force, and the origin of each value."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import typer

from triggerer.cli.terminal import options
from triggerer.cli.terminal.output import print_json, print_note
from triggerer.cli.terminal.session import settings_for
from triggerer.cli.terminal.tables import Column, Kind, print_table
from triggerer.observability.redaction import redact

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.command()
def show(json: options.Json = False, config: options.Config = None) -> None:
    """Print every setting and its origin. Secrets are hidden; references such as env:NAME are shown."""
    from triggerer.config import SECTIONS

    settings = settings_for(config)
    values: dict[tuple[str, ...], Any] = {
        (section, key): value
        for section in SECTIONS
        for key, value in asdict(getattr(settings, section)).items()
    }
    values |= {("pools", name): slots for name, slots in sorted(settings.pools.items())}
    for name, connection in sorted(settings.connections.items()):
        values |= {("connections", name, key): item for key, item in connection.items()}
    shown = [
        {
            "section": ".".join(where[:-1]),
            "key": where[-1],
            "value": redact(where[-1], _plain(value)),
            "source": settings.sources[where],
        }
        for where, value in values.items()
    ]
    if json:
        print_json(shown)
        return
    print_table(
        ("setting", Column("value", Kind.TEXT), Column("from", Kind.TEXT)),
        (
            (f"{row['section']}.{row['key']}", row["value"], _brief(row["source"], settings.file))
            for row in shown
        ),
        empty="",
    )
    print_note(f"file: {settings.file or 'none'}")


def _brief(source: str, file: Path | None) -> str:
    # The folder of the file is printed once, below the table.
    return source if file is None else source.removeprefix(f"{file.parent}/")


def _plain(value: Any) -> Any:
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
        return int(seconds) if seconds.is_integer() else seconds
    return str(value) if isinstance(value, Path) else value
