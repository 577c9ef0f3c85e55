"""Copies the output of a JVM to standard error, and stores its last lines.

`driver_deaths` looks in these lines for the reason why the JVM ended.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from typing import Final, Protocol

_STANDARD_ERROR: Final = 2
_CHUNK_BYTES: Final = 65_536
_LONGEST_BEGUN: Final = 8_192
"""An unfinished line with more bytes is shown. The `print` of a run's own process has a buffer of this size, too."""
_LONGEST_STORED: Final = 700
"""The most characters of a stored line. So all stored lines fit into one message of `fork_server.control`."""
_NOISE: Final = frozenset(
    {
        # Every start prints these warnings, and no user can do anything about them.
        b"WARNING: Using incubator modules: jdk.incubator.vector",
        b"WARNING: package sun.security.action not in java.base",
    }
)


class OutputLines:
    """Splits the JVM's output into lines, and stores the last lines.

    A carriage return ends a line, too: users' code may show a progress bar, whose states end with this character.
    """

    def __init__(self) -> None:
        self._last: deque[str] = deque(maxlen=40)
        self._begun = b""
        self.is_out_of_memory = False
        """True once the JVM has printed that one of its threads ran out of memory."""

    @property
    def last_lines(self) -> list[str]:
        """The last lines that end with a newline, and the pieces of a line that was too long. The oldest comes first.

        A terminal overwrites a line that ends with a carriage return. Such a line is not stored, because a progress bar
        would otherwise displace the lines that tell why the JVM ended.
        """
        return list(self._last)

    def take(self, data: bytes) -> bytes:
        """Add a piece of output. Return the text that a user should see now.

        An unfinished line waits for its end, so that a line of another process does not come between its pieces. If the
        unfinished line is too long, it is returned at once: memory is limited, and nothing is lost.
        """
        text = self._begun + data
        self.is_out_of_memory |= b"java.lang.OutOfMemoryError" in text
        end = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
        if len(text) - end > _LONGEST_BEGUN:
            end = len(text)
        self._begun = text[end:]
        lines = text[:end].splitlines(keepends=True)
        shown = [line for line in lines if line.rstrip() not in _NOISE]
        for line in shown:
            if not line.endswith(b"\r"):
                self._last.append(line.decode(errors="replace").rstrip()[:_LONGEST_STORED])
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
        # PySpark's Python workers may keep the pipe open after the JVM has ended, and the thread reads until the pipe
        # is closed. A daemon thread does not keep this process from exiting.
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
