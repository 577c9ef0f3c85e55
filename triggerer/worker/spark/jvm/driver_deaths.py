"""Finds out, for the run's error, why Spark's driver ended: from the JVM's exit code and its last lines of output.

The fork server notices that the driver has ended (`worker/fork_server/driver_keeper.py`). The run's process asks the
fork server for the reason (`worker/spark_holder.py`).
"""

from __future__ import annotations

import re
import signal

from triggerer.processes.signals import signal_name

_LINE_WITH_REASON = re.compile(r"error|exception|could not|cannot|no such|denied", re.IGNORECASE)
_EMPTY_WORDS = re.compile(
    r"\s+at |.*\bWARN(ING)?\b|Using Spark's default|Picked up \w+:|Error: (Could not create the Java|A fatal exc)"
)
_CAUSE = re.compile(r'(?:Caused by: |Exception in thread (?:"[^"]*"|\S+) )(.+)')


def reason_in(lines: list[str]) -> str:
    """Return up to three lines of a JVM's output that tell why it ended. If no line does, return the last three."""
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
