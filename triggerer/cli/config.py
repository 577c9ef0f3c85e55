"""`triggerer config show`: the settings in force, and the origin of each value."""

from __future__ import annotations

from pathlib import Path

import typer

from triggerer.cli.terminal import options
from triggerer.cli.terminal.output import print_json, print_note
from triggerer.cli.terminal.session import settings_for
from triggerer.cli.terminal.tables import Column, Kind, print_table

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.command()
def show(json: options.Json = False, config: options.Config = None) -> None:
    """Print every setting and its origin. Secrets are hidden; references such as env:NAME are shown."""
    from triggerer.operations.reading.configuration import list_settings

    settings = settings_for(config)
    shown = list_settings(settings)
    if json:
        print_json(shown)
        return
    print_table(
        ("setting", Column("value", Kind.TEXT), Column("from", Kind.TEXT)),
        (
            (f"{row.section}.{row.key}", row.value, _brief(row.source, settings.file))
            for row in shown
        ),
        empty="",
    )
    print_note(f"file: {settings.file or 'none'}")


def _brief(source: str, file: Path | None) -> str:
    # Leave out the file's folder: the whole path is printed once, below the table.
    return source if file is None else source.removeprefix(f"{file.parent}/")
