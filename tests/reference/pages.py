"""Renders generated pages of docs/reference: commands from the command line, and errors from their classes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import click
import typer

from tests.reference.monitoring import dashboard, metrics_page
from triggerer import errors
from triggerer.cli.app import LazyCommand, app
from triggerer.errors import TriggererError

_REFERENCE: Final = Path(__file__).resolve().parents[2] / "docs" / "reference"
_DEPLOY: Final = _REFERENCE.parents[1] / "deploy"
_COMMON: Final = {"--help", "--config", "--json"}
"""Options that are in no table, because almost every command has them."""
_GENERATED: Final = "<!-- Written by `python -m tests.reference`. Do not edit. -->"


def commands() -> str:
    """Render each command with its arguments and options, as `--help` has them."""
    lines = [
        "# Commands",
        "",
        _GENERATED,
        "",
        "Exit codes: 0 done, 1 refused or failed, 2 wrong use. Every command takes `--config FILE`. Every command that",
        "lists or shows something takes `--json`, and prints one array or one object on standard output.",
    ]
    root: Any = typer.main.get_command(app)
    for words, command in sorted(_leaves(("triggerer",), root)):
        lines += ["", f"## `{' '.join(words)}`", "", *_paragraphs(command.help or "")]
        context = click.Context(command, info_name=words[-1])
        rows = [row for one in command.get_params(context) if (row := _row(one, context))]
        if rows:
            lines += ["", "| Argument or option | Meaning |", "|---|---|", *rows]
    return "\n".join(lines) + "\n"


def _leaves(words: tuple[str, ...], command: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(command, LazyCommand):
        command = command.load()
    children = getattr(command, "commands", None)
    if not children:
        yield words, command
        return
    for name, child in children.items():
        yield from _leaves((*words, name), child)


def _paragraphs(text: str) -> Iterator[str]:
    for number, paragraph in enumerate(inspect.cleandoc(text).split("\n\n")):
        if number:
            yield ""
        yield from _wrapped(paragraph.replace("\b", "").strip())


def _wrapped(paragraph: str, width: int = 110) -> Iterator[str]:
    line = ""
    for word in paragraph.split():
        if line and len(line) + len(word) >= width:
            yield line
            line = word
        else:
            line = f"{line} {word}".strip()
    yield line


def _row(parameter: Any, context: click.Context) -> str | None:
    if _COMMON & {*parameter.opts} or getattr(parameter, "hidden", False):
        return None
    record = parameter.get_help_record(context)
    name, meaning = record or (parameter.human_readable_name, "")
    cell = f"`{name.replace('|', chr(92) + '|')}`"
    return f"| {cell} | {' '.join(meaning.split()).replace('|', chr(92) + '|') or '—'} |"


def error_classes() -> str:
    """Render each error class with its parent and the first paragraph of its docstring."""
    lines = [
        "# Errors",
        "",
        _GENERATED,
        "",
        "Each error is a `TriggererError`. Its base class says who must act. A command prints the message in one line",
        "and the hint in the next; its exit code is 1.",
        "",
        "| Error | A kind of | When |",
        "|---|---|---|",
    ]
    classes = [
        one
        for one in vars(errors).values()
        if inspect.isclass(one)
        and issubclass(one, TriggererError)
        and one.__module__ == errors.__name__
    ]
    for one in sorted(classes, key=lambda one: [base.__name__ for base in reversed(one.__mro__)]):
        parent = one.__mro__[1].__name__
        when = " ".join(inspect.cleandoc(one.__doc__ or "").split("\n\n")[0].split())
        lines.append(
            f"| `{one.__name__}` | {'—' if parent == 'Exception' else f'`{parent}`'} | {when} |"
        )
    return "\n".join(lines) + "\n"


LOG_EVENTS: Final = _REFERENCE / "log-events.md"
"""Written together with the pages in `PAGES`. Those must be up to date, but this page may lack a few events."""
PAGES: Final[dict[Path, Callable[[], str]]] = {
    _REFERENCE / "commands.md": commands,
    _REFERENCE / "errors.md": error_classes,
    _REFERENCE / "metrics.md": metrics_page,
    _DEPLOY / "monitoring" / "dashboard.json": dashboard,
}
