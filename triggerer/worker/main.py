"""A worker: `python -m triggerer.worker.main`, started by the executor. See `triggerer.worker.fork_server.server`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NoReturn

from triggerer.processes.ipc import connect_to_parent
from triggerer.processes.priority import give_way
from triggerer.worker.logs.writing import set_up_logging

_NICENESS: Final = 5


def _enter_folder() -> None:
    try:
        os.chdir(Path.cwd())
    except OSError:
        # The folder is gone, or the service's user has no access, for instance if root started the service by
        # `runuser`.
        os.chdir("/")


def main() -> NoReturn:
    """Run a worker over the inherited channel."""
    channel = connect_to_parent()
    setup = channel.receive()
    # Lower this process's priority: if processors are scarce, the service's event loop comes first, because it starts
    # further runs.
    give_way(_NICENESS)
    _enter_folder()
    set_up_logging()
    from triggerer.worker.fork_server.server import ForkServer

    ForkServer(channel, setup).serve()


if __name__ == "__main__":
    main()
