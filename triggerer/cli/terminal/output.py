"""Prints fields, notes and JSON, and formats cells. `triggerer.cli.terminal.tables` prints tables."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, NoReturn

import typer

from triggerer.domain.instants import readable
from triggerer.nearest import ending


def print_json(value: Any) -> None:
    """Print a value as JSON; dataclasses become objects, instants become ISO 8601 in UTC."""
    import orjson

    options = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE
    sys.stdout.buffer.write(orjson.dumps(value, default=str, option=options))
    sys.stdout.buffer.flush()


def print_answer(value: Any, sentence: str, *, json: bool) -> None:
    """Print the result of a command: the value as JSON, or the sentence for people."""
    if json:
        print_json(value)
    else:
        typer.echo(sentence)


def print_fields(fields: Iterable[tuple[str, Any]]) -> None:
    """Print one `name  value` line per field. A field that is None is left out."""
    shown = [(name, value) for name, value in fields if value is not None]
    width = max(len(name) for name, _ in shown)
    for name, value in shown:
        first, *rest = text(value).splitlines() or [""]
        typer.echo(f"{name:<{width}}  {first}")
        for line in rest:
            typer.echo(f"{'':<{width}}  {line}")


def print_note(message: str) -> None:
    """Print a remark on standard error, so that it is not part of the answer."""
    typer.echo(message, err=True)


def text(value: Any) -> str:
    """Return the text of a table cell. An instant is in UTC, to the second."""
    if value is None:
        return "-"
    if isinstance(value, datetime):
        return readable(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict | list):
        import orjson

        return orjson.dumps(value, default=str).decode()
    return str(value)


def readable_lane(lane: str) -> str:
    """Return a lane, which is stored as JSON, in a short form: `["orders",3]` is `orders[3]`."""
    import orjson

    try:
        value = orjson.loads(lane)
    except orjson.JSONDecodeError:
        return lane
    match value:
        case str():
            return value
        case [str(name), int(number)]:
            return f"{name}[{number}]"
    return lane


def counted(number: int, noun: str) -> str:
    """Return `1 file`, `2 files`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def elapsed(start: datetime | None, end: datetime | None) -> str | None:
    """Return the time from start to end, such as `2.5 s`; None if there is no start.

    Without an end, the time runs until now.
    """
    if start is None:
        return None
    return f"{((end or datetime.now(UTC)) - start).total_seconds():.1f} s"


def wrong_use(message: str) -> NoReturn:
    """Print the message on standard error and end with exit code 2."""
    print_note(f"triggerer: {message}")
    raise typer.Exit(2)


def check_state(state: str | None, known: Iterable[str]) -> None:
    """End with exit code 2 if `--state` is given and is none of the known states."""
    if state is not None and state not in (states := [str(one) for one in known]):
        meant = ending(state, states)
        wrong_use(f"--state is one of {', '.join(states)}, not {state!r}{meant}")
