"""Directs the output of a run's process into the run's log."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from triggerer.observability.redaction import hide_known
from triggerer.worker.parallel.threads import own_task


def tail(path: str | Path, size: int = 4000) -> str:
    """Return the last `size` bytes of a file as text; empty if the file cannot be read."""
    try:
        with Path(path).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - size))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def open_log(path: Path) -> int:
    """Open a run's log for appending, and return the descriptor. New files and folders are for this user alone.

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
    # The write may fail, for instance because the disk is full. That is no loss: the store has the run's end and its
    # error.
    with suppress(OSError), open(open_log(Path(path)), "ab") as log:
        log.write(line.encode("utf-8", "backslashreplace"))


def set_up_logging() -> None:
    """Send the log messages of users' code to standard error, which is the run's log file during a run.

    A further call undoes changes that imported modules made to the standard streams and to the root logger.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, f"__{name}__")
        if stream.closed:
            number = {"stdout": 1, "stderr": 2}[name]
            # closefd=False: code that closes the stream must not close the descriptor, which leads to the run's log.
            stream = open(  # noqa: SIM115
                number, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False
            )
            setattr(sys, f"__{name}__", stream)
        setattr(sys, name, stream)
        # Flush every line, so that the log has everything that a process printed before it was killed.
        stream.reconfigure(line_buffering=True)
    root = logging.getLogger()
    if root.handlers != [_handler]:
        for handler in root.handlers[:]:
            root.removeHandler(handler)
        root.addHandler(_handler)
    _handler.setStream(sys.stderr)
    _set_level(root, logging.INFO)
    logging.captureWarnings(True)
    # Py4J logs every call of the session at INFO.
    _set_level(logging.getLogger("py4j"), logging.WARNING)
    # Enable our loggers again: a module's `dictConfig` disables all loggers that it does not name.
    for name in ("triggerer.run", "triggerer.worker.spark_holder"):
        logging.getLogger(name).disabled = False


def _set_level(logger: logging.Logger, level: int) -> None:
    # `setLevel` clears the level caches of all loggers, which costs more than the rest of the set-up.
    if logger.level != level:
        logger.setLevel(level)


class _Formatter(logging.Formatter):
    """Hides the secrets that this process knows in log messages. Text that the user's code prints is not changed."""

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
# UTC, like the times of every command, wherever the executor runs.
FORMATTER.converter = time.gmtime
_handler: Final = logging.StreamHandler()
_handler.setFormatter(FORMATTER)


class Output:
    """Standard output and standard error of this process and its children.

    Args:
        tell: Receives the descriptor of the run's log once the log is open. The descriptor is closed after the run.
    """

    def __init__(self, tell: Callable[[int], None]) -> None:
        self._tell = tell

    @contextmanager
    def into(self, path: Path) -> Iterator[None]:
        """Append the output to the file during the block.

        Raises:
            OSError: The file cannot be opened. Nothing was changed.
        """
        log = open_log(path)
        # Duplicates of the present descriptors, which are restored afterwards. Children do not inherit the duplicates.
        original = (os.dup(1), os.dup(2))
        try:
            self._tell(log)
            self._point(log, log)
            yield
        finally:
            self._point(*original)
            for descriptor in (log, *original):
                os.close(descriptor)

    @staticmethod
    def _point(out: int, err: int) -> None:
        for stream in (sys.stdout, sys.stderr):
            # The run closed or replaced the stream, or the disk is full. The rest of the output is lost.
            with suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os.dup2(out, 1)
        os.dup2(err, 2)
