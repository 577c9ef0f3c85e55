"""Copies the output of a JVM to standard error, and stores its last lines, which tell how the JVM ended."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
from collections import deque
from typing import Final, Protocol

from triggerer.processes.signals import signal_name

_STANDARD_ERROR: Final = 2
_CHUNK_BYTES: Final = 65_536
_NOISE: Final = frozenset(
    {
        # Every start prints these warnings, and no user can do anything about them.
        b"WARNING: Using incubator modules: jdk.incubator.vector",
        b"WARNING: package sun.security.action not in java.base",
    }
)
_LINE_WITH_REASON = re.compile(r"error|exception|could not|cannot|no such|denied", re.IGNORECASE)
_EMPTY_WORDS = re.compile(
    r"\s+at |.*\bWARN(ING)?\b|Using Spark's default|Picked up \w+:|Error: (Could not create the Java|A fatal exc)"
)
_CAUSE = re.compile(r'(?:Caused by: |Exception in thread (?:"[^"]*"|\S+) )(.+)')


class OutputLines:
    """Splits the JVM's output into lines, and stores the last lines."""

    def __init__(self) -> None:
        self._last: deque[str] = deque(maxlen=40)
        self._begun = b""
        self.is_out_of_memory = False
        """True once the JVM has printed that one of its threads ran out of memory."""

    @property
    def last_lines(self) -> list[str]:
        return list(self._last)

    def take(self, data: bytes) -> bytes:
        """Add a piece of output. Return the complete lines that a user should see."""
        *lines, self._begun = (self._begun + data).split(b"\n")
        shown = [line + b"\n" for line in lines if line.rstrip() not in _NOISE]
        for line in shown:
            self.is_out_of_memory |= b"java.lang.OutOfMemoryError" in line
            self._last.append(line.decode(errors="replace").rstrip())
        return b"".join(shown)

    def end(self) -> bytes:
        """Return the last line, which may be incomplete."""
        return self.take(b"\n") if self._begun else b""


class JvmOutput(Protocol):
    """The output of the JVM of this process's session."""

    @property
    def write_end(self) -> int:
        """The end of a pipe that the JVM writes to."""

    @property
    def last_lines(self) -> list[str]: ...

    @property
    def is_out_of_memory(self) -> bool: ...

    def close_ours(self) -> None:
        """Close our copy of the writing end, so that reading ends when the JVM is gone."""

    def wait_for_end(self, timeout_s: float) -> None:
        """After the JVM has ended, wait until all of its output is read."""


class CopiedOutput:
    """Copies the JVM's output to this process's standard error, in a thread, and stores the last lines."""

    def __init__(self) -> None:
        self._lines = OutputLines()
        read_end, self.write_end = os.pipe()
        # The thread is a daemon: PySpark's Python workers may have the pipe open for longer than the JVM lives.
        self._thread = threading.Thread(
            target=self._hand_on, args=(read_end,), name="spark-output", daemon=True
        )
        self._thread.start()

    @property
    def last_lines(self) -> list[str]:
        return self._lines.last_lines

    @property
    def is_out_of_memory(self) -> bool:
        return self._lines.is_out_of_memory

    def close_ours(self) -> None:
        os.close(self.write_end)

    def wait_for_end(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def _hand_on(self, read_end: int) -> None:
        while data := os.read(read_end, _CHUNK_BYTES):
            self._show(self._lines.take(data))
        self._show(self._lines.end())
        os.close(read_end)

    @staticmethod
    def _show(lines: bytes) -> None:
        with contextlib.suppress(OSError):
            os.write(_STANDARD_ERROR, lines)


def reason_in(lines: list[str]) -> str:
    """Return the lines of a JVM's output that tell why it ended; empty if no line does."""
    lines = [line.strip() for line in lines if line.strip() and not _EMPTY_WORDS.match(line)]
    reasons = [line for line in lines if _LINE_WITH_REASON.search(line)]
    return " / ".join(reasons[:3] or lines[-3:])


def cause_in(lines: list[str]) -> str:
    """Return the root cause of the last exception that a driver printed, or else what `reason_in` returns."""
    causes = [found[1] for line in lines if (found := _CAUSE.match(line))]
    return causes[-1] if causes else reason_in([line for line in lines if " INFO " not in line])


def how_jvm_ended(code: int | None, lines: list[str], *, is_out_of_memory: bool) -> str | None:
    """Return how a JVM ended, as a sentence without its period; None: the JVM is usable.

    Args:
        code: The exit code. Negative: a signal killed the JVM. None: the JVM has not ended.
        lines: The last lines of the JVM's output.
        is_out_of_memory: True if the JVM has printed that a thread ran out of memory.
    """
    if is_out_of_memory:
        return (
            "Spark's driver ran out of heap memory: give it more by spark.driver.memory in [spark.conf],"
            " or collect less"
        )
    if code is None:
        return None
    if code == -signal.SIGKILL:
        return "Spark's JVM was killed, as the kernel does when memory runs out"
    how = f"by {signal_name(-code)}" if code < 0 else f"with code {code}"
    said = reason_in(lines)
    return f"Spark's JVM ended {how}" + (f": {said}" if said else "")
