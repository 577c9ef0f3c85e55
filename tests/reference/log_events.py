"""Finds the events that the service logs, in its source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

_TRIGGERER: Final = Path(__file__).resolve().parents[2] / "triggerer"
_NOT_THE_SERVICE: Final = ("cli", "demo", "domain", "testing")
"""Packages without log lines of the service. In `domain`, the tasks of `SparkSql` write to the log of their run."""
_LEVELS: Final = {"info": 0, "warning": 1, "error": 2, "exception": 2}
_NAMES: Final = ("info", "warning", "error")


class LogEvent(NamedTuple):
    """One event that the service may log."""

    level: str
    event: str
    fields: tuple[str, ...]
    logger: str


def log_events() -> list[LogEvent]:
    """Return the events sorted by level, the most severe first, and then by text. The level `debug` is left out."""
    found: dict[tuple[str, str], LogEvent] = {}
    for path in sorted(_TRIGGERER.rglob("*.py")):
        package = path.relative_to(_TRIGGERER).parts[0]
        if package not in _NOT_THE_SERVICE:
            for one in _events_of(path):
                known = found.get((one.level, one.event))
                fields = (
                    one.fields
                    if known is None
                    else tuple(dict.fromkeys((*known.fields, *one.fields)))
                )
                found[one.level, one.event] = one._replace(fields=fields)
    return sorted(found.values(), key=lambda one: (-_NAMES.index(one.level), one.event.lower()))


def _events_of(path: Path) -> Iterator[LogEvent]:
    logger = ".".join(path.relative_to(_TRIGGERER.parent).with_suffix("").parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        level, first = _level_of(node)
        if level is None or first is None or (text := _text(first)) is None:
            continue
        fields = tuple(one.arg for one in node.keywords if one.arg and one.arg != "exc_info")
        yield LogEvent(level, text, fields, logger)


def _level_of(node: ast.Call) -> tuple[str | None, ast.expr | None]:
    """Return the level and the text of `_log.warning(...)` and of `warn_seldom(_log, number, ...)`."""
    function = node.func
    if (
        isinstance(function, ast.Attribute)
        and isinstance(function.value, ast.Name)
        and function.value.id in ("_log", "log")
        and function.attr in _LEVELS
    ):
        return _NAMES[_LEVELS[function.attr]], node.args[0]
    if isinstance(function, ast.Name) and function.id == "warn_seldom" and len(node.args) > 2:
        return "warning", node.args[2]
    return None, None


def _text(node: ast.expr) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values
        )
    return None
