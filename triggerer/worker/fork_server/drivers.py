"""The fork server's view of a driver: the JVM's process, its lifeline and its output."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from triggerer.worker.spark.jvm.driver_deaths import how_jvm_ended
from triggerer.worker.spark.jvm.output import OutputLines

_CHUNK_BYTES: Final = 65_536


class Driver:
    """One driver: a JVM that a child process, the opening process, starts.

    The object exists before the opening process starts, and until the JVM ends.

    Attributes:
        lifeline: The reading end of the pipe that the opening process gives to the JVM as its standard input.
        write_end: The writing end of the pipe that the opening process gives to the JVM for its output.
        output: The reading end of the pipe for the JVM's output. Reading from it does not block.
        pid: The JVM's process id; None: the JVM has not started.
        shared: The data for attaching to the driver (`SharedDriver` as JSON); None until the driver is open.
        code: The JVM's exit code; None: it has not ended.
        has_closed_output: True once no process can write to the pipe, and all output was read.
    """

    def __init__(self) -> None:
        self.lifeline, self._alive = os.pipe()
        self.output, self.write_end = os.pipe()
        os.set_blocking(self.output, False)
        self.lines: Final = OutputLines()
        self.pid: int | None = None
        self.shared: dict[str, Any] | None = None
        self.code: int | None = None
        self.is_dropped = False
        self.has_closed_output = False

    @property
    def is_usable(self) -> bool:
        return self.shared is not None and not self.is_dropped and self.how_ended() is None

    def close_theirs(self) -> None:
        """Close the ends of the pipes that the opening process has inherited."""
        os.close(self.lifeline)
        os.close(self.write_end)

    def read(self) -> Iterator[bytes]:
        """Read the pipe until it is empty. Yield the text that a user should see now."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.output, _CHUNK_BYTES):
                yield self.lines.take(data)
            self.has_closed_output = True
            yield self.lines.end()

    def drop(self) -> None:
        """Close the JVM's standard input, so that the JVM ends."""
        if not self.is_dropped:
            self.is_dropped = True
            os.close(self._alive)

    def close(self) -> None:
        self.drop()
        os.close(self.output)

    def close_in_child(self) -> None:
        """In a forked child: close the pipes' ends that only the fork server may have.

        The JVM ends when the fork server closes the writing end of the JVM's standard input. A copy of this writing end
        in the child would keep the JVM alive.
        """
        if not self.is_dropped:
            os.close(self._alive)
        os.close(self.output)

    def how_ended(self) -> str | None:
        """Return how the JVM ended, as a sentence without its period; None: the JVM is usable."""
        return how_jvm_ended(
            self.code, self.lines.last_lines, is_out_of_memory=self.lines.is_out_of_memory
        )

    def has_ended(self) -> bool:
        """True if the JVM is gone.

        `code` is set only after this process has reaped the JVM. Until then, `/proc` shows whether the JVM is gone.
        """
        if self.code is not None or self.pid is None:
            return self.code is not None
        try:
            state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        return state in "ZX"
