"""The options that several commands share. Help texts must not contain `[…]`: Typer takes it for markup."""

from __future__ import annotations

import shlex
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from triggerer.cli.terminal import completing
from triggerer.cli.terminal.output import wrong_use

if TYPE_CHECKING:
    from datetime import datetime, timedelta

_MOST = 2**63 - 1
"""The largest integer that a database can store."""


def refuse_unstorable(value: int | list[int] | None) -> int | list[int] | None:
    """Return the value of an option or argument; refuse an integer that no database can store.

    `typer.Option(max=...)` would print the bound of 19 digits in each help text.

    Raises:
        typer.BadParameter: An integer is too large. The command ends with exit code 2.
    """
    for number in value if isinstance(value, list) else [value]:
        if number is not None and abs(number) > _MOST:
            raise typer.BadParameter(f"{number} has more digits than a database can store")
    return value


Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Configuration file (TOML). Default: $TRIGGERER_CONFIG, else ./triggerer.toml if it exists.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Limit = Annotated[
    int,
    typer.Option(
        "--limit",
        min=0,
        callback=refuse_unstorable,
        help="Show at most this number of rows; 0 shows all.",
    ),
]
DagId = Annotated[str, typer.Argument(metavar="DAG_ID", autocompletion=completing.dag_ids)]
Dag = Annotated[
    str | None,
    typer.Option(
        "--dag",
        metavar="DAG_ID",
        help="Show only what belongs to this DAG.",
        autocompletion=completing.dag_ids,
    ),
]
Asset = Annotated[
    str | None,
    typer.Option(
        "--asset",
        metavar="ASSET",
        help="Show only what belongs to this asset (name or URI).",
        autocompletion=completing.asset_names,
    ),
]
State = Annotated[str | None, typer.Option("--state", help="Show only what is in this state.")]
DAG_STATES = ("active", "paused", "stale")
DagsFolder = Annotated[
    Path | None,
    typer.Option(
        "--dags-folder",
        metavar="DIR",
        help="Folder with the DAG files, in place of the configured one.",
    ),
]

LogicalDate = Annotated[
    str | None,
    typer.Option(
        "--logical-date",
        metavar="TIME",
        help="Logical date, ISO 8601. Default: now if the DAG has a timetable. The run covers the last interval that"
        " ended by then: for a daily timetable, 2026-03-10 means the data of 2026-03-09.",
    ),
]


def parse_instant(text: str | None, option: str, *, also: str = "") -> datetime | None:
    """Return the instant in UTC; end with exit code 2 if the text is no instant. Text without an offset means UTC.

    Args:
        also: Other values that the option accepts, for the message, such as `earliest or `.
    """
    if text is None:
        return None
    try:
        return _instant(text)
    except (ValueError, OverflowError):
        wrong_use(f"{option} takes {also}a time such as 2026-11-24T12:00:00Z, not {text!r}")


def parse_instant_or_age(text: str, option: str) -> datetime:
    """Return the instant, or now minus the age, in UTC; end with exit code 2 if the text is neither."""
    from datetime import UTC, datetime, timedelta

    from pydantic import TypeAdapter, ValidationError

    with suppress(ValueError, OverflowError):
        return _instant(text)
    try:
        return datetime.now(UTC) - TypeAdapter(timedelta).validate_python(text)
    except (ValidationError, OverflowError):
        wrong_use(
            f"{option} takes a time such as 2026-11-24T12:00:00Z or an age such as 90d, not {text!r}"
        )


def parse_duration(text: str, option: str) -> timedelta:
    """Return the duration; end with exit code 2 if the text is no duration, or a negative one."""
    from datetime import timedelta

    from pydantic import Field, TypeAdapter, ValidationError

    not_negative = Annotated[timedelta, Field(ge=timedelta())]
    try:
        return TypeAdapter[timedelta](not_negative).validate_python(text)
    except (ValidationError, OverflowError):
        wrong_use(f"{option} takes a duration such as PT6H or 2d, not {text!r}")


def _instant(text: str) -> datetime:
    """Return the instant in UTC.

    Raises:
        ValueError: The text is no instant.
        OverflowError: In UTC the instant lies before the year 1, or after the year 9999.
    """
    from datetime import UTC, datetime

    instant = datetime.fromisoformat(text)
    return instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)


def parse_json(text: str, option: str, *, what: str = "JSON") -> Any:
    """Return the JSON value; end with exit code 2 if the text is not JSON.

    An integer of more than 64 bits stays an integer, so that the store refuses it. A faster parser (orjson) would
    silently round it to a float.

    Args:
        what: Names the expected value in the message, such as `a JSON object`.
    """
    import json
    from math import isinf
    from string import digits

    def refuse(constant: str) -> None:
        raise ValueError(f"JSON has no {constant}")

    def number(text: str) -> float:
        if isinf(value := float(text)):
            raise ValueError(f"the number {text} is too large")
        return value

    try:
        return json.loads(text, parse_constant=refuse, parse_float=number)
    except (ValueError, RecursionError) as error:
        # The parser's message helps only if the text looks like JSON.
        detail = (
            f": {error}" if text.lstrip()[:1] in {"{", "[", '"', "-", "N", "I", *digits} else ""
        )
        wrong_use(f"{option} takes {what} such as {_example(text)}, not {text!r}{detail}")


def parse_extra(text: str, option: str) -> dict[str, Any]:
    """Return the event's extra data: the JSON object, or `{"payload": value}` for a value of another type."""
    value = parse_json(text, option)
    return value if isinstance(value, dict) else {"payload": value}


def parse_object(text: str | None, option: str) -> dict[str, Any] | None:
    """Return the JSON object; end with exit code 2 if the text is no JSON object."""
    if text is None:
        return None
    value = parse_json(text, option, what="a JSON object")
    if not isinstance(value, dict):
        wrong_use(f"{option} takes a JSON object such as {_example(text)}, not {text!r}")
    return value


def _example(text: str) -> str:
    """Return a text such as `a=1,b=x` as a JSON object, quoted for a shell. For any other text, return a sample."""
    from json import dumps, loads

    found: dict[str, Any] = {}
    for part in text.split(","):
        name, sign, value = (one.strip() for one in part.partition("="))
        if not sign or not name.isidentifier():
            return shlex.quote(dumps({"name": "value"}))
        found[name] = value
        with suppress(ValueError):
            found[name] = loads(value)
    return shlex.quote(dumps(found))
