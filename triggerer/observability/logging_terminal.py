"""Renders log lines for a terminal: short, in UTC, and with the most important fields only.

At the log level "debug" the lines have all fields. If the output is no terminal, `logging_setup` renders the lines
without this module.
"""

from __future__ import annotations

import logging
import math
import os
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from functools import partial
from typing import Any, Final, TextIO

# The loggers of the brokers' client libraries. `Brief` drops their lines, because they log each attempt to connect.
# If all attempts fail, the stream ends, and the service logs the error.
CLIENT_LIBRARIES: Final = frozenset(
    {
        "aiobotocore",
        "aiokafka",
        "azure",
        "boto3",
        "botocore",
        "google",
        "grpc",
        "httpcore",
        "httpx",
        "kafka",
        "urllib3",
    }
)
_PLUGINS: Final = frozenset({"producers", "watchers"})
_GROUP_STARTED: Final = "Shared stream group started"
_RESET, _DIM, _BOLD = "\x1b[0m", "\x1b[2m", "\x1b[1m"
_COLOURS: Final = {"warning": "\x1b[33m", "error": "\x1b[31m", "critical": "\x1b[31m"}
_ERRORS: Final = ("error", "reason", "summary")
_MOST_FIELDS: Final = 3
"""The most fields to show in a line. The first fields of the log call are shown, because they are the most important
ones.
"""
_INDENT: Final = " " * 10


class Brief(logging.Filter):
    """Drops the lines of client libraries, and lines that repeat a line of the last `quiet_s` seconds.

    Only lines of plugins, and lines about the start of a stream's group, can count as repeats. A line with an exception
    never counts as a repeat.
    """

    def __init__(self, *, quiet_s: float = 600.0) -> None:
        super().__init__()
        self._quiet_s = quiet_s
        self._said: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        root = record.name.partition(".")[0]
        if root in CLIENT_LIBRARIES:
            return False
        event = record.msg["event"] if isinstance(record.msg, dict) else record.getMessage()
        if record.exc_info or not (root in _PLUGINS or str(event).startswith(_GROUP_STARTED)):
            return True
        key = (record.name, str(event))
        is_repeat = record.created - self._said.get(key, -math.inf) < self._quiet_s
        self._said = {
            one: at for one, at in self._said.items() if record.created - at < self._quiet_s
        }
        # A dropped line begins the interval again. So a stream that keeps restarting logs one start. A later start is
        # logged only if the stream ran for `quiet_s` before.
        self._said[key] = record.created
        return not is_repeat


class TerminalRenderer:
    """Renders a line as `08:01:33Z warning event: subject, field=value: error (hint)`.

    Args:
        stream: The terminal. Its width is read for each line, because a window can be resized.
        is_whole: True: show every field, and every frame of a traceback.
        width: Returns the number of columns. None: the width of `stream`.
    """

    def __init__(
        self, stream: TextIO, *, is_whole: bool, width: Callable[[], int] | None = None
    ) -> None:
        self._width = width or partial(_width_of, stream)
        self._is_whole = is_whole
        self._day = ""

    def __call__(self, _logger: Any, _method: str, line: MutableMapping[str, Any]) -> str:
        """Return the rendered line; structlog calls it."""
        at, level = str(line.pop("timestamp", "")), str(line.pop("level", "info"))
        logger, exc_info = line.pop("logger", None), line.pop("exc_info", None)
        blocks = [
            str(line.pop(name)) for name in ("stack", "exception") if line.get(name) is not None
        ]
        if (failure := _exception_of(exc_info)) is not None:
            blocks.append(_traceback(failure, is_whole=self._is_whole))
        said = _sentence(line, is_whole=self._is_whole)
        if self._is_whole and logger:
            said += f" [{logger}]"
        shown = [*self._new_day(at), *self._wrapped(f"{at[11:19]}Z", level, said)]
        shown += [textwrap.indent(block.rstrip("\n"), _INDENT) for block in blocks]
        return "\n".join(shown)

    def _new_day(self, at: str) -> Iterator[str]:
        if at[:10] != self._day:
            self._day = at[:10]
            yield f"{_DIM}{self._day} (UTC){_RESET}"

    def _wrapped(self, time: str, level: str, said: str) -> list[str]:
        head = f"{time} {level:<7} "
        first, *others = textwrap.wrap(
            head + said,
            width=max(self._width(), 40),
            subsequent_indent=_INDENT,
            break_long_words=False,
            break_on_hyphens=False,
        ) or [head]
        colour = _COLOURS.get(level, "")
        weight = _BOLD if colour else ""
        rest = first[len(head) :]
        return [
            f"{_DIM}{time}{_RESET} {colour}{level:<7}{_RESET} {weight}{rest}{_RESET}",
            *others,
        ]


def _sentence(line: Mapping[str, Any], *, is_whole: bool) -> str:
    """Return the line's text: the event, its subject, its fields, and the error with its hint."""
    fields = {name: value for name, value in line.items() if value is not None}
    event = str(fields.pop("event", ""))
    hint = fields.pop("hint", None)
    errors = [_first_line(fields.pop(name)) for name in _ERRORS if fields.get(name)]
    if _starts_group(event):
        # The event's text already contains the stream's key.
        fields.pop("stream", None)
    if "summary" in line and not is_whole:
        fields = {}
    subject = _subject(fields)
    shown = list(fields.items()) if is_whole else list(fields.items())[:_MOST_FIELDS]
    about = ", ".join(
        [*([subject] if subject else []), *(f"{name}={_value(value)}" for name, value in shown)]
    )
    told = ": ".join(part for part in (event, about, *errors) if part)
    return f"{told} ({hint})" if hint else told


def _starts_group(event: str) -> bool:
    return event.startswith(_GROUP_STARTED)


def _subject(fields: MutableMapping[str, Any]) -> str | None:
    """Remove the line's subject, such as a file or a run, from the fields, and return it. None: there is no subject."""
    if "file" in fields:
        line = fields.pop("line", None)
        return f"{fields.pop('file')}{f':{line}' if line else ''}"
    if "run_id" in fields:
        return " ".join(str(fields.pop(name)) for name in ("dag_id", "run_id") if name in fields)
    for name in ("stream", "trigger", "watcher", "dag_id", "database"):
        if name in fields:
            return str(fields.pop(name))
    return None


def _value(value: Any) -> str:
    if isinstance(value, list | tuple | set | frozenset):
        return f"[{', '.join(map(str, value))}]"
    return _first_line(value)


def _first_line(value: Any) -> str:
    lines = str(value).strip().splitlines()
    return lines[0] if lines else ""


def _width_of(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def _exception_of(exc_info: Any) -> BaseException | None:
    if exc_info is True:
        return sys.exception()
    error = exc_info[1] if isinstance(exc_info, tuple) else exc_info
    return error if isinstance(error, BaseException) else None


def _traceback(error: BaseException, *, is_whole: bool) -> str:
    told = traceback.TracebackException.from_exception(error)
    left_out = 0 if is_whole else sum(_leave_out_libraries(one) for one in _chain(told))
    text = "".join(told.format())
    if left_out:
        text += f'({left_out} frames of libraries are left out; [core] log_level = "debug" shows them)\n'
    return text


def _chain(told: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    yield told
    for other in (told.__cause__, told.__context__, *(told.exceptions or ())):
        if other is not None:
            yield from _chain(other)


def _leave_out_libraries(told: traceback.TracebackException) -> int:
    """Remove the frames of installed libraries, except our own packages. Return the number of removed frames."""
    kept = [frame for frame in told.stack if not _is_of_library(frame.filename)]
    if not kept:
        # Show some frames rather than none.
        return 0
    left_out = len(told.stack) - len(kept)
    told.stack[:] = kept
    return left_out


def _is_of_library(filename: str) -> bool:
    _, found, within = filename.rpartition("/site-packages/")
    return bool(found) and not _is_ours(within.split("/"))


def _is_ours(parts: Iterable[str]) -> bool:
    return next(iter(parts), "") in {"triggerer", *_PLUGINS}
