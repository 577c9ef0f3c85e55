"""Runs commands and services in forks of a process that has already imported their modules.

A fork saves the imports, which cost most of a command's processor time. A test session starts
hundreds of commands.

`python -m tests.acceptance.forked_commands` is the process that forks. Each line of its standard input is a request in
JSON. Each line of its output is an answer: the exit code of a command, or the process id of a service.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

_IMPORTED = (
    "triggerer.cli.dags.commands",
    "triggerer.cli.runs.commands",
    "triggerer.store.database.opening",
    "triggerer.store.schema.models",
    "triggerer.service.running",
    "triggerer.service.parts",
    "aiosqlite",
    "asyncpg",
    "uvloop",
)
_TIMEOUT_S = 60


class CommandForks:
    """A process that forks commands, one after another, and services. `command_forks` makes it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            cwd=Path(__file__).parents[2],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        atexit.register(self.close)

    def run(self, arguments: Sequence[str], cwd: Path | None) -> subprocess.CompletedProcess[str]:
        """Run `triggerer` with these arguments; after a minute SIGALRM ends it."""
        with tempfile.TemporaryDirectory() as folder, self._lock:
            output, errors = Path(folder, "output"), Path(folder, "errors")
            request = {
                "arguments": list(arguments),
                "cwd": str(cwd or Path.cwd()),
                "output": str(output),
                "errors": str(errors),
            }
            code = self._ask(json.dumps(request))
            texts = (file.read_bytes().decode() for file in (output, errors))
            return subprocess.CompletedProcess(["triggerer", *arguments], code, *texts)

    def start(
        self, arguments: Sequence[str], cwd: Path, environment: Mapping[str, str], log: Path
    ) -> ForkedService:
        """Start `triggerer` with these arguments as a service. Its output is appended to the log."""
        ended = Path(tempfile.mkdtemp(prefix="triggerer-service-"), "ended")
        log.touch()
        request = {
            "arguments": list(arguments),
            "cwd": str(cwd),
            "environment": dict(environment),
            "output": str(log),
            "errors": str(log),
            "ended": str(ended),
        }
        with self._lock:
            return ForkedService(self._ask(json.dumps(request)), ended)

    def _ask(self, request: str) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{request}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        return int(answer)

    def close(self) -> None:
        """End the process. Waits for a command that still runs, at most until the command's time limit."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


class ForkedService:
    """The part of `subprocess.Popen` that the tests use, for a service that another process has forked."""

    def __init__(self, pid: int, ended: Path) -> None:
        self.pid = pid
        self._ended = ended
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, or None while the service runs."""
        if self.returncode is None and self._ended.exists():
            self.returncode = int(self._ended.read_text())
            shutil.rmtree(self._ended.parent)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; return the exit code.

        Raises:
            subprocess.TimeoutExpired: The service still runs.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("triggerer", timeout or 0)
            # The service is not a child of this process, so `poll` looks for the file with the exit code.
            time.sleep(0.005)
        return code

    def send_signal(self, signum: int) -> None:
        """Send a signal, unless the service has ended."""
        if self.poll() is None:
            # `_keep_service` has probably not reaped the service yet. Until then, no other process gets this id.
            with suppress(ProcessLookupError):
                os.kill(self.pid, signum)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


def can_fork(environment: Mapping[str, str], of_forks: Mapping[str, str]) -> bool:
    """Return True if a fork with this environment behaves like a new process.

    Python, the linker and the allocator read their variables only when a process starts. So these variables must be
    equal in both environments.

    Args:
        of_forks: The environment of the process that forks.
    """
    return all(
        environment.get(name) == of_forks.get(name)
        for name in {*environment, *of_forks}
        if name.startswith(("PYTHON", "LD_", "MALLOC_"))
    )


@cache
def command_forks(environment: tuple[tuple[str, str], ...]) -> CommandForks:
    """Return the process that forks commands with this environment, one for each test process."""
    return CommandForks(dict(environment))


def _serve() -> None:
    for name in _IMPORTED:
        __import__(name)
    gc.freeze()
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if not pid:
            if "ended" in request:
                _keep_service(request)
            signal.alarm(_TIMEOUT_S)
            _become(request)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if "ended" not in request:
            print(code, flush=True)


def _keep_service(request: Mapping[str, Any]) -> NoReturn:
    """Fork the service, print its process id, wait for its end, and write its exit code to a file.

    This happens in a separate process, because the service's parent must live longer than the service.
    """
    if os.fork():
        os._exit(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pid = os.fork()
    if not pid:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.setsid()
        os.environ.clear()
        os.environ.update(request["environment"])
        _become(request)
    print(pid, flush=True)
    # Close the inherited pipes. Otherwise a reader of standard output would wait until the service ends.
    os.close(1)
    os.close(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    draft = Path(request["ended"] + ".draft")
    draft.write_text(str(code))
    draft.rename(request["ended"])
    os._exit(0)


def _become(request: Mapping[str, Any]) -> NoReturn:
    from triggerer import __main__ as entry
    from triggerer.cli.main import main

    os.chdir(request["cwd"])
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    for number, name in ((1, "output"), (2, "errors")):
        with Path(request[name]).open("ab") as file:
            os.dup2(file.fileno(), number)
    random.seed()
    # Do what `python -m triggerer` does: the help shows the program's name, and the working directory is not searched
    # for modules.
    sys.modules["__main__"] = entry
    sys.argv = [str(entry.__file__), *request["arguments"]]
    del sys.path[0]
    main()
    raise AssertionError("`main` does not return")


if __name__ == "__main__":
    _serve()
