"""Runs users' code in a run's process. If users' code forks the process, the fork never executes our own code."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def users_code() -> Iterator[None]:
    """At the end of the block, exit if this process is a fork that users' code made during the block.

    Otherwise the fork would go on as a copy of the original process: it would report results and wait for orders, too.
    """
    pid = os.getpid()
    code = 0
    try:
        yield
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        raise
    except BaseException:
        code = 1
        if os.getpid() != pid:
            traceback.print_exc()
        raise
    finally:
        if os.getpid() != pid:
            for stream in (sys.stdout, sys.stderr):
                # Users' code may have closed or replaced the stream.
                with suppress(OSError, ValueError, AttributeError):
                    stream.flush()
            os._exit(code)
