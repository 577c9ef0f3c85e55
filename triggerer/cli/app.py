"""The list of commands. A command's module is imported only when the user chooses that command."""

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
        "Host the watchers' streams. Needs PostgreSQL; several instances divide the streams among them.",
    ),
    "scheduler": (
        "triggerer.cli.services:scheduler",
        "Create the runs that asset events and timetables ask for. Needs PostgreSQL.",
    ),
    "dag-processor": (
        "triggerer.cli.services:dag_processor",
        "Read the DAG files and follow their changes. Needs PostgreSQL.",
    ),
    "executor": (
        "triggerer.cli.services:executor",
        "Execute queued runs in worker processes. Needs PostgreSQL.",
    ),
    "api": (
        "triggerer.cli.services:api",
        "Serve the HTTP API and the page. Needs PostgreSQL; several API processes can run behind a load balancer.",
    ),
    "demo": (
        "triggerer.cli.demo:demo",
        "Run the whole service on real data: flights and weather, from messages to a report.",
    ),
    "check": (
        "triggerer.cli.check:check",
        "Check the settings, the DAG files and the brokers, without a database; exit code 1 if something is wrong.",
    ),
    "simulate": (
        "triggerer.cli.simulate:simulate",
        "Test your watchers' filters and your DAGs' expressions with a simulated broker and store that fail.",
    ),
    "dags": (
        "triggerer.cli.dags.commands:app",
        "DAGs: list, show, pause, unpause, trigger, next, test, backfill, delete.",
    ),
    "assets": (
        "triggerer.cli.assets:app",
        "Assets: list, events, emit, delete, and the events that wait for DAGs (queued).",
    ),
    "why": (
        "triggerer.cli.why:why",
        "Show why a run exists: its asset events, and the broker messages that they came from.",
    ),
    "why-not": (
        "triggerer.cli.why:why_not",
        "Show what a DAG waits for, and what holds its runs back.",
    ),
    "runs": (
        "triggerer.cli.runs.commands:app",
        "Runs: list, show, logs, cancel, retry, clear, resolve.",
    ),
    "watchers": (
        "triggerer.cli.watchers.commands:app",
        "Watchers: list, show, replay, and their parked messages (parked).",
    ),
    "plan": (
        "triggerer.cli.plan:plan",
        "Show what other DAG files would change: DAGs, watchers, assets that nothing updates, and runs.",
    ),
    "audit": (
        "triggerer.cli.audit:audit",
        "List the changes that people and programs requested, newest first.",
    ),
    "health": (
        "triggerer.cli.health:health",
        "Show each part of the service with its heartbeat; exit code 1 if a part is missing or silent.",
    ),
    "db": (
        "triggerer.cli.database:app",
        "The database: migrate, check, clean; restored (from a backup).",
    ),
    "tokens": (
        "triggerer.cli.tokens:app",
        "Tokens of the HTTP API: create, list, revoke; and links that sign a browser in (login).",
    ),
    "config": ("triggerer.cli.config:app", "The configuration: show every setting and its origin."),
    "notify": ("triggerer.cli.notify:app", "Notifications: send a test to each target (test)."),
    "completion": (
        "triggerer.cli.completion:completion",
        "Print a script that makes your shell complete commands, DAG ids, run ids, assets and watchers.",
    ),
}
"""Command name -> (module:attribute of its function or Typer group, its line in `triggerer --help`)."""


class LazyCommand(TyperCommand):
    """A command, or a group of commands, whose module is imported when its arguments are parsed."""

    def __init__(self, name: str, target: str, help_: str) -> None:
        super().__init__(name, help=help_, short_help=help_)
        self._target = target

    def load(self) -> Any:
        """Import the module and return the real Typer command."""
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
    """Show the whole first paragraph of each command in a list of commands. Typer would cut it off."""
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
    # A TriggererError is printed as one line. Any other error is a bug of ours and keeps its traceback.
    pretty_exceptions_enable=False,
    # `add_completion` registers Typer's shell classes. Only a shell that asks for completions needs them.
    add_completion=VARIABLE in os.environ,
    # Rich takes longer to import than everything else that `triggerer --help` needs.
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
    # The callback of --version does the work.
    pass


def print_error(error: BaseException) -> None:
    """Print the message of a TriggererError, and its hint, if any, on the next line.

    For other errors, print nothing.
    """
    if isinstance(error, TriggererError):
        typer.echo(f"triggerer: {redact_text(error.message)}", err=True)
        if error.hint:
            typer.echo(f"  hint: {redact_text(error.hint)}", err=True)
