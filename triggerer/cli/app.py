"""The commands, as Typer knows them."""

from __future__ import annotations

from typing import Annotated

import typer

from triggerer.cli import (
    assets,
    check,
    config,
    dags,
    database,
    demo,
    runs,
    services,
    simulate,
    watchers,
)
from triggerer.errors import TriggererError

app = typer.Typer(
    name="triggerer",
    help="Turns broker messages into durable asset events, and asset events into Spark runs.",
    no_args_is_help=True,
    # A TriggererError is one line on standard error; any other error is ours, with its traceback.
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"triggerer {version('triggerer')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version."
        ),
    ] = False,
) -> None:
    # All is done by the option's own callback.
    pass


for group in (dags, assets, runs, watchers, database, config):
    app.add_typer(group.app)
for commands in (services, demo, check, simulate):
    commands.register(app)


def print_error(error: BaseException) -> None:
    """Print what went wrong in one line, and what to do in the next."""
    if isinstance(error, TriggererError):
        typer.echo(f"triggerer: {error.message}", err=True)
        if error.hint:
            typer.echo(f"  hint: {error.hint}", err=True)
