"""The JVM of a classic session: how it starts through PySpark's launcher, is listened to, and ends."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from triggerer.errors import SubmitFailed
from triggerer.observability.redaction import is_secret_key, redact_text
from triggerer.processes.signals import signal_name

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway

_STANDARD_ERROR: Final = 2
_NEEDED_AT_START: Final = frozenset(
    {
        "spark.driver.extraJavaOptions",
        "spark.driver.defaultJavaOptions",
        "spark.driver.extraClassPath",
        "spark.driver.extraLibraryPath",
        "spark.driver.memory",
        "spark.master",
    }
)
"""The JVM needs these settings at its start. A secret in them is visible in `ps`, as the guide says."""
_NOISE: Final = frozenset(
    {
        # Every start prints these. They are true, but nobody can act on them.
        b"WARNING: Using incubator modules: jdk.incubator.vector",
        b"WARNING: package sun.security.action not in java.base",
    }
)
_LINE_WITH_REASON = re.compile(r"error|exception|could not|cannot|no such|denied", re.IGNORECASE)
_EMPTY_WORDS = re.compile(
    r"\s+at |.*\bWARN(ING)?\b|Using Spark's default|Error: (Could not create the Java|A fatal exc)"
)


class JvmOutput:
    """Copies the JVM's output to this process's standard error, and remembers its end.

    It uses a pipe of its own instead of inheritance, for two reasons: an error can quote the output, and Spark's
    warnings follow when a worker redirects its standard error into the log of a run.
    """

    def __init__(self) -> None:
        self._last: deque[str] = deque(maxlen=40)
        self.is_out_of_memory = False
        """True once the JVM has printed that one of its threads ran out of memory."""
        read_end, self.write_end = os.pipe()
        # A daemon thread: PySpark's worker processes may have the other end open for longer than the JVM lives.
        self._thread = threading.Thread(
            target=self._hand_on, args=(read_end,), name="spark-output", daemon=True
        )
        self._thread.start()

    @property
    def last_lines(self) -> list[str]:
        return list(self._last)

    def close_ours(self) -> None:
        """Close our copy of the writing end, so that reading ends when the JVM is gone."""
        os.close(self.write_end)

    def wait_for_end(self, timeout_s: float) -> None:
        """Wait until all output of a dead JVM was read."""
        self._thread.join(timeout_s)

    def _hand_on(self, read_end: int) -> None:
        with open(read_end, "rb") as lines:
            for line in lines:
                if line.rstrip() in _NOISE:
                    continue
                self.is_out_of_memory |= b"java.lang.OutOfMemoryError" in line
                self._last.append(line.decode(errors="replace").rstrip())
                with contextlib.suppress(OSError):
                    os.write(_STANDARD_ERROR, line)


Environment = Mapping[str, str | None]
"""Environment variables by name; None: not set."""


def launch(conf: Mapping[str, str], environment: Environment) -> JavaGateway:
    """Start a JVM with the part of `conf` that it needs at its start, and with changes to our environment.

    The JVM ends with this process, whichever way the process ends: it reads from a pipe whose other end only this
    process has. (A process forked from this one without `exec` would have it as well.)

    Raises:
        SubmitFailed: The JVM did not start. The message has its output.
    """
    from pyspark import SparkConf
    from pyspark.java_gateway import launch_gateway

    if not shutil.which("bash"):
        raise SubmitFailed(
            "Spark cannot be started: its launcher is a bash script and there is no bash",
            hint="install bash (Alpine: apk add bash procps; slim images: apt-get install bash)",
        )
    jvm_conf = SparkConf(loadDefaults=False).setAll(list(on_command_line(conf).items()))
    start: Any = launch_gateway
    output = JvmOutput()
    try:
        with laid_over_environment(environment):
            gateway = start(jvm_conf, {"stdout": output.write_end, "stderr": output.write_end})
    except Exception as error:
        output.close_ours()
        output.wait_for_end(1.0)
        raise SubmitFailed(
            f"Spark's JVM did not start: {reason_in(output.last_lines) or error}",
            hint="standard error has its full output",
        ) from error
    output.close_ours()
    # PySpark stores `proc` on the gateway in the same way.
    gateway.spark_output = output
    return gateway


def on_command_line(conf: Mapping[str, str]) -> dict[str, str]:
    """Return the part of `conf` for the JVM's command line: everything except secrets, which `ps` would show.

    The context receives the rest later, over PySpark's connection.
    """
    return {
        key: value
        for key, value in conf.items()
        if key in _NEEDED_AT_START or (not is_secret_key(key) and redact_text(value) == value)
    }


def reason_in(lines: list[str]) -> str:
    """Return the lines of a JVM's output that tell why it ended; empty if no line does."""
    lines = [line.strip() for line in lines if line.strip() and not _EMPTY_WORDS.match(line)]
    reasons = [line for line in lines if _LINE_WITH_REASON.search(line)]
    return " / ".join(reasons[:3] or lines[-3:])


@contextlib.contextmanager
def laid_over_environment(variables: Environment) -> Iterator[None]:
    """Set variables during the block, because PySpark passes nothing else to its JVM."""
    before = {name: os.environ.get(name) for name in variables}
    _set(variables)
    try:
        yield
    finally:
        _set(before)


def _set(variables: Environment) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def process_of(gateway: Any) -> subprocess.Popen[bytes] | None:
    """Return the JVM's process; None: the JVM came first and started Python (`spark-submit`)."""
    process: subprocess.Popen[bytes] | None = vars(gateway).get("proc")
    return process


def last_lines(gateway: Any) -> list[str]:
    """Return the end of the JVM's output."""
    output: JvmOutput | None = vars(gateway).get("spark_output")
    return output.last_lines if output else []


def how_it_ended(gateway: Any) -> str | None:
    """Return how the JVM ended, for a message; None: it is usable."""
    process = process_of(gateway)
    code = process.poll() if process else None
    if code is None:
        output: JvmOutput | None = vars(gateway).get("spark_output")
        is_out_of_memory = output is not None and output.is_out_of_memory
        return "Spark's JVM has run out of memory" if is_out_of_memory else None
    if code == -signal.SIGKILL:
        return "Spark's JVM was killed, as the kernel does when memory runs out"
    how = f"by {signal_name(-code)}" if code < 0 else f"with code {code}"
    said = reason_in(last_lines(gateway))
    return f"Spark's JVM ended {how}" + (f": {said}" if said else "")


def end(gateway: Any, *, grace_s: float) -> None:
    """End the JVM, by force after `grace_s`."""
    # The connection may be broken. Closing the pipe is what ends the JVM.
    with contextlib.suppress(Exception):
        gateway.shutdown()
    process = process_of(gateway)
    if process is None:
        return
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
