"""`triggerer check`: imports every DAG file and says what is wrong where."""

from __future__ import annotations

import typer

from triggerer.cli import options


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(check)


def check(
    dags_folder: options.DagsFolder = None,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Import every DAG file, without a database; exit code 1 if something is wrong."""
