"""Gives a run its API token in a file, so that the token appears neither on a command line nor in Spark's settings."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from tempfile import TemporaryFile
from typing import Final

logger = logging.getLogger("triggerer.run")

FILE_VARIABLE: Final = "TRIGGERER_RUN_TOKEN_FILE"
"""The environment variable that has the path of the token's file."""


@contextmanager
def offered(token: str) -> Iterator[None]:
    """Store the token in a file during the block. The environment variable `FILE_VARIABLE` contains the file's path.

    If the token is empty, do nothing. Only the user who runs this process can read the file. The variable stays set
    after the block.

    The file has no name, and only this process has it open. So a process that is killed leaves no token behind.
    """
    with ExitStack() as stack:
        try:
            if token:
                # Not `os.memfd_create`: Pythons that were built against an old libc, as some of conda and uv, lack it.
                file = stack.enter_context(TemporaryFile(buffering=0))
                file.write(token.encode())
                os.environ[FILE_VARIABLE] = f"/proc/{os.getpid()}/fd/{file.fileno()}"
        except OSError as error:
            # Continue without the token, because few runs need one.
            logger.warning("the run gets no token for the API: %s", error)
        yield
