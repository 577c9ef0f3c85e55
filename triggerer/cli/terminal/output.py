"""What people and programs read: fields, cells and JSON; for tables see `triggerer.cli.terminal.tables`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, NoReturn

import typer

from triggerer.domain.instants import readable
from triggerer.nearest import ending


def print_json(value: Any) -> None:
    """Print one array or object; dataclasses become objects, instants ISO 8601 in UTC."""
    import orjson

    options = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE
    sys.stdout.buffer.write(orjson.dumps(value, default=str, option=options))
    sys.stdout.buffer.flush()


def print_answer(value: Any, told: str, *, json: bool) -> None:
    """Print what a command has done: the value for programs, or the sentence for people."""
    if json:
        print_json(value)
    else:
        typer.echo(told)


def print_fields(fields: Iterable[tuple[str, Any]]) -> None:
    """Print a thing as `name  value` lines; what is None is left out."""
    shown = [(name, value) for name, value in fields if value is not None]
    width = max(len(name) for name, _ in shown)
    for name, value in shown:
        first, *rest = text(value).splitlines() or [""]
        typer.echo(f"{name:<{width}}  {first}")
        for line in rest:
            typer.echo(f"{'':<{width}}  {line}")


def print_note(message: str) -> None:
    """Print what does not belong to the answer: on standard error."""
    typer.echo(message, err=True)


def text(value: Any) -> str:
    """Return a cell as people read it; instants in UTC, to the second, see `triggerer.domain.instants`."""
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
    """Return a lane, stored as JSON, as people write it: `["orders",3]` is `orders[3]`."""
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
    """Return how long it took, or has taken so far; None where it has not begun."""
    if start is None:
        return None
    return f"{((end or datetime.now(UTC)) - start).total_seconds():.1f} s"


def wrong_use(message: str) -> NoReturn:
    """End with exit code 2."""
    print_note(f"triggerer: {message}")
    raise typer.Exit(2)


def check_state(state: str | None, known: Iterable[str]) -> None:
    """End with exit code 2 where `--state` names none of these."""
    if state is not None and state not in (states := [str(one) for one in known]):
        meant = ending(state, states)
        wrong_use(f"--state is one of {', '.join(states)}, not {state!r}{meant}")
