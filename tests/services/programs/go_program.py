"""Programs that Go builds once for each machine. A cache outside the checkout keeps them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.services.process import ServiceUnavailable
from tests.services.programs.java_program import cache_folder, locked


def find_go(service: str) -> str:
    """The path of `go`.

    Raises:
        ServiceUnavailable: `go` is not installed.
    """
    go = shutil.which("go")
    if go is None:
        raise ServiceUnavailable(f"{service}: there is no go, with which it is built")
    return go


def run_go(
    service: str, command: list[str], *, timeout_s: float, cwd: Path | None = None, **variables: str
) -> None:
    """Run a command that builds a program.

    Raises:
        ServiceUnavailable: The command failed. The message contains the end of its output.
    """
    done = subprocess.run(
        command,
        cwd=cwd,
        # The compiler runs only briefly, so collecting garbage less often saves time.
        env={"GOGC": "400", **os.environ, "CGO_ENABLED": "0", **variables},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    if done.returncode:
        raise ServiceUnavailable(f"{service}: {command} failed:\n{done.stderr[-2000:]}")


def find_built(name: str, build: Callable[[Path], None]) -> Path:
    """Return the file or folder `name` of the cache. If it is missing, call `build` with the path to create.

    Args:
        name: The service, and everything that the result depends on, for example as a digest of the sources.
    """
    found = cache_folder() / name
    with locked(f"{name.partition('-')[0]}.lock"):
        if not found.exists():
            draft = found.with_suffix(".draft")
            build(draft)
            draft.rename(found)
    return found
