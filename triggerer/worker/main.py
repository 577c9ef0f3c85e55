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
        # The working directory is gone, or the service's user may not enter it. For example, root started the service
        # with `runuser`.
        os.chdir("/")


def main() -> NoReturn:
    """Run a worker over the inherited channel."""
    channel = connect_to_parent()
    setup = channel.receive()
    # Lower this process's priority. If processors are scarce, the service's event loop must come first, because it
    # starts the runs.
    give_way(_NICENESS)
    _enter_folder()
    set_up_logging()
    from triggerer.worker.fork_server.server import ForkServer

    ForkServer(channel, setup).serve()


if __name__ == "__main__":
    main()
