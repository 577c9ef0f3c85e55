"""The commands, as Typer knows them: each is imported when it is chosen."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from triggerer.cli.terminal.completing import VARIABLE
from triggerer.errors import TriggererError
from triggerer.observability.redaction import redact_text

COMMANDS: Final = {
    "standalone": (
        "triggerer.cli.services:standalone",
        "Run everything in one process tree, until SIGTERM or Ctrl-C.",
    ),
    "triggerer": (
        "triggerer.cli.services:triggerer",
        "Host the watchers' streams. Needs PostgreSQL; several share the streams.",
    ),
    "scheduler": (
        "triggerer.cli.services:scheduler",
        "Turn queued asset events into runs. Needs PostgreSQL.",
    ),
    "dag-processor": (
        "triggerer.cli.services:dag_processor",
        "Read the DAG files and follow their changes. Needs PostgreSQL.",
    ),
    "executor": (
        "triggerer.cli.services:executor",
        "Execute queued runs in worker processes. Needs PostgreSQL.",
    ),
    "demo": (
        "triggerer.cli.demo:demo",
        "Run the whole service on real data: flights and weather, from messages to an answer.",
    ),
    "check": (
        "triggerer.cli.check:check",
        "Check the settings, the DAG files and the brokers, without a database; exit code 1 if something is wrong.",
    ),
    "simulate": (
        "triggerer.cli.simulate:simulate",
        "Run your watchers' filters and your DAGs' expressions against a broker and a store that fail.",
    ),
    "dags": (
        "triggerer.cli.dags.commands:app",
        "DAGs: list, show, pause, unpause, trigger, next, test, backfill.",
    ),
    "assets": (
        "triggerer.cli.assets:app",
        "Assets and their events: list, events, emit; what is queued.",
    ),
    "why": (
        "triggerer.cli.why:why",
        "Show what made a run: its events, and the messages behind them.",
    ),
    "why-not": (
        "triggerer.cli.why:why_not",
        "Show what a DAG waits for, and what holds it back.",
    ),
    "runs": ("triggerer.cli.runs.commands:app", "Runs: list, show, logs, cancel, retry, clear."),
    "watchers": (
        "triggerer.cli.watchers.commands:app",
        "Watchers: list, show, replay; what is parked.",
    ),
    "plan": (
        "triggerer.cli.plan:plan",
        "Show which runs other DAG files would have made, and what they change for what is queued now.",
    ),
    "db": ("triggerer.cli.database:app", "The database: migrate, check, clean."),
    "config": ("triggerer.cli.config:app", "The configuration in force."),
    "completion": (
        "triggerer.cli.completion:completion",
        "Print a script that makes a shell complete commands, DAG ids, run ids, assets and watchers.",
    ),
}
"""By name: where a function, or a Typer with a group of commands, is found, and its line in `triggerer --help`."""


class LazyCommand(TyperCommand):
    """Stands for a command, or a group of them, until its arguments are parsed."""

    def __init__(self, name: str, target: str, help_: str) -> None:
        super().__init__(name, help=help_, short_help=help_)
        self._target = target

    def load(self) -> Any:
        """Import the command and return it as Typer has made it."""
        module, _, attribute = self._target.partition(":")
        target = getattr(import_module(module), attribute)
        if isinstance(target, typer.Typer):
            group = typer.main.get_group(target)
            group.name, group.help = self.name, self.help
            _show_whole_lines(group)
            return group
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command(self.name)(target)
        return typer.main.get_command(app)

    def make_context(self, *args: Any, **options: Any) -> Any:
        return self.load().make_context(*args, **options)


def _show_whole_lines(group: Any) -> None:
    """Have a list of commands show the first paragraph of each; otherwise it cuts that off after some words."""
    for command in group.commands.values():
        command.short_help = (command.help or "").partition("\n\n")[0]
        if hasattr(command, "commands"):
            _show_whole_lines(command)


class _LazyGroup(TyperGroup):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name, (target, help_) in COMMANDS.items():
            self.add_command(LazyCommand(name, target, help_))


app = typer.Typer(
    name="triggerer",
    cls=_LazyGroup,
    help="Turns broker messages into durable asset events, and asset events into Spark runs.",
    no_args_is_help=True,
    # A TriggererError is one line on standard error; any other error is ours, with its traceback.
    pretty_exceptions_enable=False,
    # Typer makes its classes for shells known by this. Only a shell that asks for completions needs them.
    add_completion=VARIABLE in os.environ,
    # Typer's boxes cost more to import than all the rest of `triggerer --help`.
    rich_markup_mode=None,
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


def print_error(error: BaseException) -> None:
    """Print what went wrong in one line, and what to do in the next."""
    if isinstance(error, TriggererError):
        typer.echo(f"triggerer: {redact_text(error.message)}", err=True)
        if error.hint:
            typer.echo(f"  hint: {redact_text(error.hint)}", err=True)
