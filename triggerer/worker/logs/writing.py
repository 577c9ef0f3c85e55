"""Directs the output of a run's process into the run's log."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Any, Final

from triggerer.observability.redaction import hide_known
from triggerer.worker.logs.reading import tail
from triggerer.worker.parallel.threads import own_task


def open_log(path: Path) -> int:
    """Open a run's log for appending, and return the descriptor.

    Only the user who runs this process can use new files and folders.

    Raises:
        OSError: The file cannot be written.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o600)
    except FileNotFoundError:
        # Make <home>/logs/<dag_id> folder by folder, because mkdir applies its mode only to the last folder of a path.
        for folder in (*reversed(path.parents[1:3]), path.parent):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(path, flags, 0o600)


def append_line(path: str, text: str, *, level: int = logging.INFO) -> None:
    """Append a line to a run's log in the format of the logger `triggerer.run`, even if the run changed its loggers."""
    record = {"name": "triggerer.run", "levelname": logging.getLevelName(level), "levelno": level}
    record["msg"] = text
    line = FORMATTER.format(logging.makeLogRecord(record)) + "\n"
    # A task may have written half a line, or have been killed in the middle of one.
    if tail(path, 1) not in ("", "\n"):
        line = "\n" + line
    # Ignore a failure, for instance because the disk is full: a missing line must not disturb the run.
    with suppress(OSError), open(open_log(Path(path)), "ab") as log:
        log.write(line.encode("utf-8", "backslashreplace"))


def set_up_logging() -> None:
    """Send log messages to standard error, which is the run's log file during a run.

    Call this once, at a worker's start. Processes that the worker forks inherit the configuration.
    """
    for stream in (sys.stdout, sys.stderr):
        # Flush every line, so that the log has everything that a process printed before it was killed.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(line_buffering=True)
    handler = logging.StreamHandler()
    handler.setFormatter(FORMATTER)
    # force: a `sitecustomize` may have added a handler, and each line would be in the log twice.
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.captureWarnings(True)
    # Py4J logs every call of the session at INFO.
    logging.getLogger("py4j").setLevel(logging.WARNING)


class _Formatter(logging.Formatter):
    """Hides known secrets in log messages. Text that the user's code prints is not changed."""

    def format(self, record: logging.LogRecord) -> str:
        text = hide_known(super().format(record))
        task_id = own_task.get()
        return text if task_id is None else f"[{task_id}] {text}"

    def formatException(self, ei: Any) -> str:  # noqa: N802  (a name of the module logging)
        try:
            return super().formatException(ei)
        except Exception as other:  # noqa: BLE001  (an exception may have anything for its text, its line or its notes)
            return f"{ei[0].__name__} (its traceback cannot be shown: {type(other).__name__})"


FORMATTER: Final = _Formatter(
    "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s", "%Y-%m-%d %H:%M:%S"
)
# Write times in UTC, as all commands do, even if the executor's machine has another time zone.
FORMATTER.converter = time.gmtime


@contextmanager
def output_into(path: Path, tell: Callable[[int], None]) -> Iterator[None]:
    """Append the output of this process and its children to a run's log. At the block's end, flush the output.

    Args:
        tell: Receives a descriptor of the log. The descriptor is closed once `tell` has returned.
    Raises:
        OSError: The log cannot be opened. Nothing was changed.
    """
    log = open_log(path)
    tell(log)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    try:
        yield
    finally:
        flush_output()


def flush_output() -> None:
    """Write what users' code has printed since the end of the last line."""
    for stream in (sys.stdout, sys.stderr):
        # Users' code may have closed or replaced the stream, or the disk may be full. Then this text is lost.
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
