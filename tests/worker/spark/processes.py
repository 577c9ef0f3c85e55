"""Processes with a Spark session each, and a look at the processes that they leave behind."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil


def start_python(code: str, home: Path, **environment: str) -> subprocess.Popen[str]:
    """Start a process with this code, which can use `home`, `open_it` and the names of `triggerer.worker.spark`."""
    preamble = (
        "import os, sys, time\n"
        "from datetime import timedelta\n"
        "from pathlib import Path\n"
        "from triggerer.worker.spark import *\n"
        "from triggerer.errors import *\n"
        f"home = Path({str(home)!r})\n"
        "def open_it(settings=SparkSettings(), **options):\n"
        "    return open_session(settings, home=home, app_name='test', **options)\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", preamble + code],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def run_python(code: str, home: Path, **environment: str) -> str:
    """Return the process's output. The process must succeed and write nothing to standard error."""
    with start_python(code, home, **environment) as process:
        try:
            shown, errors = process.communicate(timeout=240)
        finally:
            process.kill()
    assert (process.returncode, errors) == (0, ""), errors
    return shown


def processes_of(home: Path) -> list[psutil.Process]:
    """Return all Java and training processes that were started with this home."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        arguments = process.info["cmdline"] or []
        if any(str(home) in argument for argument in arguments[1:]) and "-c" not in arguments:
            found.append(process)
    return found


def wait_until_gone(home: Path, *, timeout_s: float) -> float:
    """Return how many seconds passed until no process of this home was left."""
    started = time.monotonic()
    while left := processes_of(home):
        assert time.monotonic() - started < timeout_s, left
        time.sleep(0.05)  # the end of a process that is not our child raises no event
    return time.monotonic() - started
