"""Commands in processes of their own, as a user enters them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.acceptance.forked_commands import ForkedService, can_fork, command_forks
from triggerer.cli.main import SERVICES

ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("TRIGGERER")}
"""The environment without the tester's own settings. The API's port is 0, so that each service takes a free port: tests
run side by side."""
ENVIRONMENT["TRIGGERER__API__PORT"] = "0"


def run_command(
    *arguments: str, cwd: Path | None = None, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `triggerer` with these arguments; by default in `ENVIRONMENT`."""
    if environment is None and SERVICES.isdisjoint(arguments[:1]):
        return command_forks(tuple(ENVIRONMENT.items())).run(arguments, cwd)
    return subprocess.run(
        [sys.executable, "-m", "triggerer", *arguments],
        cwd=cwd,
        env=ENVIRONMENT if environment is None else environment,
        text=True,
        capture_output=True,
        timeout=60,
        check=False,
    )


def output_of(done: subprocess.CompletedProcess[str]) -> str:
    """Return the standard output of a command that must have succeeded."""
    assert done.returncode == 0, done.stderr
    return done.stdout


def json_of(done: subprocess.CompletedProcess[str]) -> Any:
    """Return the parsed output of a command with `--json` that must have succeeded."""
    return json.loads(output_of(done))


def start_service(
    *arguments: str, cwd: Path, log: Path, environment: Mapping[str, str] = ENVIRONMENT
) -> ForkedService | subprocess.Popen[bytes]:
    """Start `triggerer` with these arguments, in a process session of its own. Append its output to `log`."""
    if can_fork(environment, ENVIRONMENT):
        forks = command_forks(tuple(ENVIRONMENT.items()))
        return forks.start(arguments, cwd, environment, log)
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "triggerer", *arguments],
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
