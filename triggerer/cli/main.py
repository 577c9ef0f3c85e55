"""The `triggerer` command. Exit codes: 0 done, 1 refused or failed, 2 wrong use."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Iterator
from types import FrameType
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


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, before or after the service listens for signals itself.

    A `KeyboardInterrupt` of exactly that type that leaves code made from a string, as when a module that
    defines a dataclass is being imported, has CPython end by the signal whatever we exit with
    (`run_eval_code_obj` in its pythonrun.c).
    """


def _interrupt(_signum: int, _frame: FrameType | None) -> None:
    raise Interrupted


def main() -> None:
    """Run the command line; does not return."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # `triggerer runs list | head`: the reader has what it wants. Python flushes at exit again.
        sys.stdout = None
        sys.exit(0)
    except TriggererError as error:
        print_error(error)
        sys.exit(1)
    except BaseExceptionGroup as group:
        expected, others = group.split(TriggererError)
        if expected is None or others is not None:
            raise
        for leaf in dict.fromkeys(_leaves(expected)):
            print_error(leaf)
        sys.exit(1)
    finally:
        # Before it ends, Python looks for cycles in all that was ever imported: a fifth of a command's time.
        gc.freeze()


def print_error(error: BaseException) -> None:
    """Print what went wrong in one line, and what to do in the next."""
    if isinstance(error, TriggererError):
        typer.echo(f"triggerer: {error.message}", err=True)
        if error.hint:
            typer.echo(f"  hint: {error.hint}", err=True)


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


if __name__ == "__main__":
    main()
