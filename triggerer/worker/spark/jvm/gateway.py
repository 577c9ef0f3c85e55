"""Starts the JVM of a classic session through PySpark's launcher, connects to it, and ends it."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from triggerer.errors import SubmitFailed
from triggerer.observability.redaction import is_secret_key, redact_text
from triggerer.worker.spark.jvm.driver_deaths import how_jvm_ended, reason_in
from triggerer.worker.spark.jvm.output import CopiedOutput, JvmOutput

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway

_LOOK_EVERY_S: Final = 0.02
_ANSWER: Final = struct.Struct("!ii")
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
"""The settings that the JVM needs at its start. `ps` shows their values, so users must put no secrets into them."""


@dataclass(frozen=True, slots=True)
class JvmStreams:
    """The streams of a JVM that another process owns."""

    lifeline: int
    """The JVM's standard input: a pipe whose writing end only the owner has. When the owner closes this end, the JVM
    ends."""
    output: JvmOutput
    on_start: Callable[[int], None]
    """Called with the JVM's process id as soon as the JVM starts."""


Environment = Mapping[str, str | None]
"""Environment variables by name; None: not set."""


def launch(
    conf: Mapping[str, str], environment: Environment, streams: JvmStreams | None = None
) -> JavaGateway:
    """Start a JVM with the settings that `on_command_line` selects. `environment` replaces variables of this process.

    Args:
        streams: The streams of a JVM that another process owns. None: the JVM's standard input is a pipe from this
            process, and the JVM ends when the pipe closes. A process that this process forks without `exec` keeps the
            pipe open.
    Raises:
        SubmitFailed: The JVM did not start. The message has its output.
    """
    if not shutil.which("bash"):
        raise SubmitFailed(
            "Spark cannot be started: its launcher is a bash script and there is no bash",
            hint="install bash (Alpine: apk add bash procps; slim images: apt-get install bash)",
        )
    output = CopiedOutput() if streams is None else streams.output
    try:
        with (
            tempfile.TemporaryDirectory(prefix="triggerer-jvm-") as folder,
            laid_over_environment(environment),
        ):
            answer = Path(folder, "gateway")
            process = _start(conf, answer, output, streams)
            gateway = _connect(process, *_read_gateway(process, answer))
    except Exception as error:
        output.close_ours()
        output.wait_for_end(1.0)
        raise SubmitFailed(
            f"Spark's JVM did not start: {reason_in(output.last_lines) or error}",
            hint="standard error has its full output",
        ) from error
    output.close_ours()
    gateway.spark_output = output
    return gateway


def _start(
    conf: Mapping[str, str], answer: Path, output: JvmOutput, streams: JvmStreams | None
) -> subprocess.Popen[bytes]:
    command = [str(Path(os.environ["SPARK_HOME"], "bin", "spark-submit"))]
    for key, value in on_command_line(conf).items():
        command += ["--conf", f"{key}={value}"]
    command += shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE if streams is None else streams.lifeline,
        stdout=output.write_end,
        stderr=output.write_end,
        # Spark's `PythonGatewayServer` reads these variables. PySpark's `java_gateway.py` sets them in this way, too.
        env={
            **os.environ,
            "SPARK_CONNECT_MODE": "0",
            "_PYSPARK_DRIVER_CONN_INFO_PATH": str(answer),
        },
    )
    if streams is not None:
        streams.on_start(process.pid)
    return process


def _read_gateway(process: subprocess.Popen[bytes], answer: Path) -> tuple[int, str]:
    """Return the port and the secret of a starting JVM, once it has written its complete answer."""
    while process.poll() is None and not answer.is_file():
        time.sleep(_LOOK_EVERY_S)
    if not answer.is_file():
        raise ChildProcessError(f"it ended with code {process.returncode}")
    content = answer.read_bytes()
    port, length = _ANSWER.unpack_from(content)
    return port, content[_ANSWER.size : _ANSWER.size + length].decode()


def _connect(process: subprocess.Popen[bytes], port: int, secret: str) -> JavaGateway:
    gateway = connect(port, secret)
    # PySpark's own launcher uses this attribute, too. So `process_of` works for each gateway.
    gateway.proc = process
    return gateway


def connect(port: int, secret: str) -> JavaGateway:
    """Return a connection to a running JVM, with the classes that PySpark uses."""
    from pyspark.java_gateway import launch_gateway

    where = {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
    with laid_over_environment(where):
        return launch_gateway()  # type: ignore[no-untyped-call]


def on_command_line(conf: Mapping[str, str]) -> dict[str, str]:
    """Return the part of `conf` for the JVM's command line: everything except secrets, which `ps` would show.

    The settings of `_NEEDED_AT_START` are always included. The context receives the other settings later, over
    PySpark's connection.
    """
    return {
        key: value
        for key, value in conf.items()
        if key in _NEEDED_AT_START or (not is_secret_key(key) and redact_text(value) == value)
    }


@contextlib.contextmanager
def laid_over_environment(variables: Environment) -> Iterator[None]:
    """Set variables of this process during the block: PySpark's launcher has no other way to pass them to its JVM."""
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
    """Return the JVM's process. None: `spark-submit` started the JVM first, and the JVM started Python."""
    process: subprocess.Popen[bytes] | None = vars(gateway).get("proc")
    return process


def how_it_ended(gateway: Any) -> str | None:
    """Return a clause that says how the JVM ended. None: the JVM is usable."""
    process = process_of(gateway)
    output: JvmOutput | None = vars(gateway).get("spark_output")
    return how_jvm_ended(
        process.poll() if process else None,
        output.last_lines if output else [],
        is_out_of_memory=output is not None and output.is_out_of_memory,
    )


def end(gateway: Any, *, grace_s: float) -> None:
    """End the JVM, by force after `grace_s`."""
    # The connection may be broken. In that case, the JVM ends because the pipe is closed below.
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
