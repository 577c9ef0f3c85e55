"""The options that several commands share (contract, §8). In help texts `[…]` is markup, and vanishes."""

from __future__ import annotations

import shlex
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from triggerer.cli.terminal import completing
from triggerer.cli.terminal.output import wrong_use

if TYPE_CHECKING:
    from datetime import datetime

Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="TOML file; default: $TRIGGERER_CONFIG, else ./triggerer.toml, if any.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Limit = Annotated[int, typer.Option("--limit", min=0, help="At most so many; 0: all.")]
DagId = Annotated[str, typer.Argument(metavar="DAG_ID", autocompletion=completing.dag_ids)]
Dag = Annotated[
    str | None,
    typer.Option(
        "--dag", metavar="DAG_ID", help="Only of this DAG.", autocompletion=completing.dag_ids
    ),
]
Asset = Annotated[
    str | None,
    typer.Option(
        "--asset",
        metavar="ASSET",
        help="Only of this asset (name or URI).",
        autocompletion=completing.asset_names,
    ),
]
State = Annotated[str | None, typer.Option("--state", help="Only in this state.")]
DAG_STATES = ("active", "paused", "stale")
DagsFolder = Annotated[
    Path | None,
    typer.Option("--dags-folder", metavar="DIR", help="Wins over the configured folder."),
]

LogicalDate = Annotated[
    str | None,
    typer.Option(
        "--logical-date",
        metavar="TIME",
        help="ISO 8601; default: none. A timetable with intervals gives the run the last interval that ended by then:"
        " with CronDataIntervalTimetable('@daily'), 2026-03-10 stands for the data of 2026-03-09.",
    ),
]


def parse_instant(text: str | None, option: str, *, also: str = "") -> datetime | None:
    """Return an instant in UTC, which is also meant where no offset is given; ends with exit code 2 if it is none.

    Args:
        also: What the option takes beside, for the message: "earliest or ".
    """
    if text is None:
        return None
    try:
        return _instant(text)
    except (ValueError, OverflowError):
        wrong_use(f"{option} takes {also}a time such as 2026-11-24T12:00:00Z, not {text!r}")


def parse_instant_or_age(text: str, option: str) -> datetime:
    """Return an instant, or that of so long ago, in UTC; ends with exit code 2 if it is neither."""
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


def _instant(text: str) -> datetime:
    """Return it in UTC.

    Raises:
        ValueError: It is none.
        OverflowError: In UTC it lies before the first year, or after the last.
    """
    from datetime import UTC, datetime

    instant = datetime.fromisoformat(text)
    return instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)


def parse_json(text: str, option: str, *, what: str = "JSON") -> Any:
    """Return a JSON value with all digits of its numbers; ends with exit code 2 if the text is not JSON.

    The store refuses an integer of more than 64 bits. A faster parser would make another number of it, silently.

    Args:
        what: The name of such a value, for the message.
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
        # Where somebody has tried to write JSON, the parser knows what is wrong with it; else it does not help.
        detail = (
            f": {error}" if text.lstrip()[:1] in {"{", "[", '"', "-", "N", "I", *digits} else ""
        )
        wrong_use(f"{option} takes {what} such as {_example(text)}, not {text!r}{detail}")


def parse_extra(text: str, option: str) -> dict[str, Any]:
    """Return what an event carries: the JSON object, or `{"payload": value}`, as of a trigger (contract, §2)."""
    value = parse_json(text, option)
    return value if isinstance(value, dict) else {"payload": value}


def parse_object(text: str | None, option: str) -> dict[str, Any] | None:
    """Return a JSON object; ends with exit code 2 if it is none."""
    if text is None:
        return None
    value = parse_json(text, option, what="a JSON object")
    if not isinstance(value, dict):
        wrong_use(f"{option} takes a JSON object such as {_example(text)}, not {text!r}")
    return value


def _example(text: str) -> str:
    """Return the object that is meant by `a=1` or `a=1,b=x`, quoted for a shell; for another text, any object."""
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
