"""How a worker's output gets into a run's log."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from triggerer.observability.redaction import hide_known


def tail(path: str | Path, size: int = 4000) -> str:
    """The last `size` bytes of a file as text; empty if it is not there."""
    try:
        with Path(path).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - size))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def open_log(path: Path) -> int:
    """Open a run's log for appending; return the descriptor. The file and its folders are made for this user alone.

    Raises:
        OSError: The file cannot be written.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o600)
    except FileNotFoundError:
        # <home>/logs/<dag_id>, one by one: mkdir gives its mode to the last folder of a path only.
        for folder in (*reversed(path.parents[1:3]), path.parent):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(path, flags, 0o600)


def append_line(path: str, text: str, *, level: int = logging.INFO) -> None:
    """Append a line to a run's log as `triggerer.run` would, whatever the run has made of its streams and loggers."""
    record = {"name": "triggerer.run", "levelname": logging.getLevelName(level), "levelno": level}
    record["msg"] = text
    line = _FORMATTER.format(logging.makeLogRecord(record)) + "\n"
    # A task may be, or have been killed, in the middle of a line.
    if tail(path, 1) not in ("", "\n"):
        line = "\n" + line
    # If this line cannot be written (a full disk, say), the run's own output could not be either. The store has the
    # run's end and its error.
    with suppress(OSError), open(open_log(Path(path)), "ab") as log:
        log.write(line.encode("utf-8", "backslashreplace"))


def set_up_logging() -> None:
    """Send what the user's code logs to standard error, which is a run's log file while it runs.

    May be repeated: it undoes what a run did to the standard streams and to the root logger.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, f"__{name}__")
        if stream.closed:
            number = {"stdout": 1, "stderr": 2}[name]
            # closefd=False: the descriptor is redirected from run to run.
            stream = open(  # noqa: SIM115
                number, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False
            )
            setattr(sys, f"__{name}__", stream)
        setattr(sys, name, stream)
        # Line by line, so that the log has what a process printed before it was killed.
        stream.reconfigure(line_buffering=True)
    root = logging.getLogger()
    if root.handlers != [_handler]:
        for handler in root.handlers[:]:
            root.removeHandler(handler)
        root.addHandler(_handler)
    _handler.setStream(sys.stderr)
    _set_level(root, logging.INFO)
    logging.captureWarnings(True)
    # Py4J logs every call of the session's at INFO.
    _set_level(logging.getLogger("py4j"), logging.WARNING)
    # `dictConfig` switches off whatever loggers it does not name.
    for name in ("triggerer.run", "triggerer.worker.session"):
        logging.getLogger(name).disabled = False


def _set_level(logger: logging.Logger, level: int) -> None:
    # `setLevel` has all loggers forget what they know of their levels, and costs more than the rest together.
    if logger.level != level:
        logger.setLevel(level)


class _Formatter(logging.Formatter):
    """Hides the secrets that this process knows. What a run prints is its own."""

    def format(self, record: logging.LogRecord) -> str:
        return hide_known(super().format(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802  (logging's name)
        try:
            return super().formatException(ei)
        except Exception as other:  # noqa: BLE001  (an exception may have anything for its text, its line or its notes)
            return f"{ei[0].__name__} (its traceback cannot be shown: {type(other).__name__})"


_FORMATTER: Final = _Formatter(
    "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s", "%Y-%m-%d %H:%M:%S"
)
# Like the times of every command: UTC, wherever the executor runs.
_FORMATTER.converter = time.gmtime
_handler: Final = logging.StreamHandler()
_handler.setFormatter(_FORMATTER)


class Output:
    """Standard output and standard error of this process and of those that it starts."""

    def __init__(self) -> None:
        # Copies, which children do not inherit, to restore after a run.
        self._original = (os.dup(1), os.dup(2))
        self._run: int | None = None

    @contextmanager
    def into(self, path: Path) -> Iterator[None]:
        """Append to the file.

        Raises:
            OSError: As of `open_log`; nothing was changed.
        """
        self._run = open_log(path)
        try:
            self._point(self._run, self._run)
            yield
        finally:
            self._point(*self._original)
            os.close(self._run)
            self._run = None

    @contextmanager
    def of_the_worker(self) -> Iterator[None]:
        """Give what is started inside the worker's own output instead of the run's log.

        A JVM outlives the run that starts it, and would go on writing into its log.
        """
        self._point(*self._original)
        try:
            yield
        finally:
            if self._run is not None:
                self._point(self._run, self._run)

    @staticmethod
    def _point(out: int, err: int) -> None:
        for stream in (sys.stdout, sys.stderr):
            # The run closed or replaced the stream, or the disk is full: what is left cannot be written.
            with suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os.dup2(out, 1)
        os.dup2(err, 2)
