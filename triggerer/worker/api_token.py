"""Gives a run its API token in a file, so that the token appears neither on a command line nor in Spark's settings."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

logger = logging.getLogger("triggerer.run")

FILE_VARIABLE: Final = "TRIGGERER_RUN_TOKEN_FILE"
"""The environment variable that has the path of the token's file."""


@contextmanager
def offered(token: str, folder: Path, *, run_pk: int, epoch: int) -> Iterator[None]:
    """Store the token in a file during the block. The environment variable `FILE_VARIABLE` contains the file's path.

    If the token is empty, do nothing. Only the user who runs this process can read the file. The variable stays set
    after the block.
    """
    # Executors on several hosts may share the folder, so the name has no process id.
    path = folder / f"run-token-{run_pk}-{epoch}"
    try:
        # A process that was killed leaves its file.
        for left in folder.glob(f"run-token-{run_pk}-*"):
            left.unlink(missing_ok=True)
        if token:
            _write(path, token)
            os.environ[FILE_VARIABLE] = str(path)
    except OSError as error:
        # Continue without the token, because few runs need one. The others must not fail because the disk is full.
        logger.warning("the run gets no token for the API: %s", error)
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _write(path: Path, token: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(token)
