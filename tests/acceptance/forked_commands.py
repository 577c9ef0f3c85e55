"""Runs commands in forks of a process that has imported what commands need.

The imports are most of a command's time, and the tests run hundreds of commands. Each command is still a process of its
own, with its own arguments, directory and output. `tests/unit/cli/test_imports.py` runs commands without this module.

Run `python -m tests.acceptance.forked_commands` for the process that forks. It reads one request in a line of JSON from
standard input, and answers with the exit code in a line.
"""

from __future__ import annotations

import atexit
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NoReturn

_IMPORTED = (
    "triggerer.cli.dags.commands",
    "triggerer.cli.runs.commands",
    "triggerer.store.database.opening",
    "triggerer.store.schema.models",
    "aiosqlite",
)
_TIMEOUT_S = 60


class CommandForks:
    """A process that runs one command after another; made by `command_forks`."""

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

    def _ask(self, request: str) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{request}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        return int(answer)

    def close(self) -> None:
        """End the process; a command that still runs is killed after its time."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@cache
def command_forks(environment: tuple[tuple[str, str], ...]) -> CommandForks:
    """Return the process that forks commands with this environment, one for each test process."""
    return CommandForks(dict(environment))


def _serve() -> None:
    for name in _IMPORTED:
        __import__(name)
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if not pid:
            _become_command(request)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def _become_command(request: Mapping[str, str]) -> NoReturn:
    from triggerer import __main__ as entry
    from triggerer.cli.main import main

    signal.alarm(_TIMEOUT_S)
    os.chdir(request["cwd"])
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    for number, name in ((1, "output"), (2, "errors")):
        with Path(request[name]).open("wb") as file:
            os.dup2(file.fileno(), number)
    random.seed()
    # As `python -m triggerer` has them: the name of the program in the help, and no working directory on the path.
    sys.modules["__main__"] = entry
    sys.argv = [str(entry.__file__), *request["arguments"]]
    del sys.path[0]
    main()
    raise AssertionError("`main` does not return")


if __name__ == "__main__":
    _serve()
