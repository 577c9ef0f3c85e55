"""Gives a run its API token in a file, so that the token appears neither on a command line nor in Spark's settings."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

logger = logging.getLogger("triggerer.run")

FILE_VARIABLE: Final = "TRIGGERER_RUN_TOKEN_FILE"
"""The environment variable that has the path of the token's file."""


@contextmanager
def offered(token: str) -> Iterator[None]:
    """Store the token in a file during the block. The environment variable `FILE_VARIABLE` contains the file's path.

    If the token is empty, do nothing. Only the user who runs this process can read the file. The variable stays set
    after the block.

    The file is in memory, and belongs to this process. So a process that is killed leaves no token behind.
    """
    descriptor = None
    try:
        if token:
            descriptor = os.memfd_create("triggerer-run-token")
            os.fchmod(descriptor, 0o600)
            os.write(descriptor, token.encode())
            os.environ[FILE_VARIABLE] = f"/proc/{os.getpid()}/fd/{descriptor}"
    except OSError as error:
        # Continue without the token, because few runs need one.
        logger.warning("the run gets no token for the API: %s", error)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)
