"""Prints tables without breaking words, so that a user can copy ids and URIs at any width of the terminal.

Rich's tables would break or cut cells that do not fit. Here, the cells of a column that does not fit are printed
beneath their rows, or the column is left out (`Kind`). In a file or a pipe, each row is one line, for grep.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from statistics import median_high
from typing import Any, Final, TypeVar

import typer

from triggerer.cli.terminal.output import print_json, print_note, text

T = TypeVar("T")
_EMPTY: Final = text(None)
_GAP: Final = 2
_INDENT: Final = 4
_BREAKS: Final = re.compile(r"\s*[\t\n\r\v\f]\s*")
_Line = list[tuple[str, str]]
"""One printed line: pairs of text and style."""
_STYLES: Final = {
    "success": "green",
    "running": "cyan",
    "running (waiting)": "yellow",
    "queued": "yellow",
    "waiting": "yellow",
    "catching_up": "yellow",
    "failing": "red",
    "failed": "red",
    "cancelled": "magenta",
    "skipped": "cyan",
}


class Kind(Enum):
    """Says what happens to a column that does not fit on the terminal."""

    WHOLE = auto()
    """The column's cells move beneath their rows, one line each."""
    TEXT = auto()
    """Only long cells move beneath their rows. If most cells are long, all cells move."""
    MINOR = auto()
    """The column is left out, and a note says so."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column's header and its kind."""

    name: str
    kind: Kind = Kind.WHOLE


def print_table(
    columns: Sequence[str | Column], rows: Iterable[Sequence[Any]], *, empty: str, limit: int = 0
) -> None:
    """Print rows under a header; without rows, print the sentence `empty`.

    A note follows if `limit` may have cut the list.

    Args:
        columns: A plain string is the name of a column of kind WHOLE.
    """
    shown = [[_BREAKS.sub(" ", text(cell)) for cell in row] for row in rows]
    if not shown:
        typer.echo(empty)
        return
    heads = [Column(column) if isinstance(column, str) else column for column in columns]
    if sys.stdout.isatty():
        heads, shown = _without_empty_columns(heads, shown)
        widths = _print_on_terminal(heads, shown)
    else:
        widths = fit(heads, shown, None)
        for line in _lines(heads, shown, widths, None):
            sys.stdout.write("".join(cell for cell, _ in line).rstrip() + "\n")
    left_out = [
        head.name for at, head in enumerate(heads) if head.kind is Kind.MINOR and at not in widths
    ]
    if left_out:
        print_note(
            f"These columns do not fit and are left out: {', '.join(left_out)}. --json shows all."
        )
    if limit and len(shown) == limit:
        print_note(f"Stopped after {limit}; --limit 0 shows all.")


def print_list(
    found: Sequence[T],
    columns: Sequence[str | Column],
    cells: Callable[[T], Sequence[Any]],
    *,
    json: bool,
    empty: str,
    limit: int,
) -> None:
    """Print a list as JSON, or as a table whose rows are `cells(item)`; see `print_table`."""
    if json:
        print_json(found)
    else:
        print_table(columns, map(cells, found), empty=empty, limit=limit)


def _without_empty_columns(
    columns: list[Column], rows: list[list[str]]
) -> tuple[list[Column], list[list[str]]]:
    """Leave out the columns that are empty in every row, except the first column.

    Only for a terminal: a script may count columns.
    """
    kept = [
        at
        for at in range(len(columns))
        if at == 0 or any(row[at] not in ("", _EMPTY) for row in rows)
    ]
    return [columns[at] for at in kept], [[row[at] for at in kept] for row in rows]


def _print_on_terminal(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> dict[int, int]:
    # Imported here, because only a terminal has colours.
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    widths = fit(columns, rows, console.width)
    for line in _lines(columns, rows, widths, console.width):
        shown = Text.assemble(*line)
        shown.rstrip()
        # Without soft_wrap, Rich would break a line that is wider than the terminal.
        console.print(shown, soft_wrap=True)
    return widths


def fit(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], room: int | None
) -> dict[int, int]:
    """Return the widths of the columns that fit side by side, by column number.

    Columns get room in this order: the first column, the WHOLE columns from the narrowest, then the others from left to
    right. A TEXT column fits if there is room for its header and its median cell.

    Args:
        rows: At least one.
        room: The width of the terminal; None if there is no limit.
    """
    cells = [[_width(row[at]) for row in rows] for at in range(len(columns))]
    natural = [max(_width(head.name), *cells[at]) for at, head in enumerate(columns)]
    if room is None or sum(natural) + _GAP * (len(columns) - 1) <= room:
        return dict(enumerate(natural))
    least = [
        max(_width(head.name), _usual(row[at] for row in rows))
        if head.kind is Kind.TEXT
        else natural[at]
        for at, head in enumerate(columns)
    ]
    whole = [at for at, head in enumerate(columns) if at and head.kind is Kind.WHOLE]
    others = [at for at, head in enumerate(columns) if at and head.kind is not Kind.WHOLE]
    widths = {0: natural[0]}
    left = room - natural[0]
    for at in [*sorted(whole, key=natural.__getitem__), *others]:
        if least[at] + _GAP <= left:
            widths[at] = least[at]
            left -= least[at] + _GAP
    # Use the remaining room to widen columns. Begin with the column that lacks the fewest characters.
    for at in sorted(widths, key=lambda at: natural[at] - widths[at]):
        more = min(natural[at] - widths[at], max(left, 0))
        widths[at] += more
        left -= more
    return dict(sorted(widths.items()))


def _usual(cells: Iterable[str]) -> int:
    """Return the median width of the cells that are not empty."""
    return median_high([_width(cell) for cell in cells if cell != _EMPTY] or [0])


def _lines(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    widths: Mapping[int, int],
    room: int | None,
) -> Iterator[_Line]:
    yield _side_by_side([(columns[at].name, "bold") for at in widths], widths)
    for row in rows:
        fits = {at for at, width in widths.items() if _width(row[at]) <= width}
        side = [(row[at], _STYLES.get(row[at], "")) if at in fits else ("", "") for at in widths]
        yield _side_by_side(side, widths)
        for at, head in enumerate(columns):
            is_shown = at in fits or (head.kind is Kind.MINOR and at not in widths)
            if not is_shown and row[at] != _EMPTY:
                yield from _beneath(head, row[at], room)


def _side_by_side(cells: _Line, widths: Mapping[int, int]) -> _Line:
    line = []
    for (cell, style), width in zip(cells, widths.values(), strict=True):
        line += [(cell, style), (" " * (width - _width(cell) + _GAP), "")]
    return line


def _beneath(column: Column, cell: str, room: int | None) -> Iterator[_Line]:
    indent = " " * _INDENT
    label = f"{indent}{column.name}: "
    lines = textwrap.wrap(
        cell,
        width=room or sys.maxsize,
        initial_indent=label,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    for number, line in enumerate(lines):
        at = len(label) if number == 0 else 0
        yield [(line[:at], "dim"), (line[at:], "")]


def _width(cell: str) -> int:
    from rich.cells import cell_len

    return cell_len(cell)
