"""Imports a file of the DAGs folder elsewhere before the service does, which may end by it.

The DAG processor has imported the file in a process, too. But the service may know a trigger from a version of the file
that could be imported, and start again with one that cannot: it would end at each start.

It is done by a child of `python -P -m triggerer.plugins.trial_import DAGS_FOLDER FILE`: some files end their parent.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Final, NoReturn

from triggerer.errors import PluginError
from triggerer.plugins.folder import DagsFolder
from triggerer.processes.child_process import child_environment
from triggerer.processes.ipc import LIFELINE_VARIABLE
from triggerer.processes.lifelines import die_with_writer
from triggerer.processes.signals import signal_name

_GOT_THROUGH: Final = 90
"""The exit code where the import came to its end, even if by an exception: that one, the service can take."""


def try_import(folder: DagsFolder, file: Path, *, patience: timedelta) -> None:
    """Import the file elsewhere; blocks until that is done.

    Raises:
        PluginError: It ends its process, or takes too long; or no process can be had now.
    """
    lifeline, end = os.pipe()
    try:
        code = _run(folder, file, lifeline, patience)
    except OSError as error:
        raise PluginError(f"importing {file} cannot be tried now: {error.strerror}") from error
    finally:
        os.close(lifeline)
        os.close(end)
    if code is None:
        raise PluginError(f"importing {file} takes longer than {patience.total_seconds():g} s")
    if code != _GOT_THROUGH:
        how = signal_name(-code) if code < 0 else f"exit code {code}"
        raise PluginError(
            f"importing {file} ends its process ({how})",
            hint="mend the file: the service does not import it as it is",
        )


def _run(folder: DagsFolder, file: Path, lifeline: int, patience: timedelta) -> int | None:
    """Return the exit code; None if it had to be ended."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", __name__, str(folder.root), str(file)],
        stdin=subprocess.DEVNULL,
        # The parser's log has what it says.
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=[lifeline],
        env={**child_environment(os.environ), LIFELINE_VARIABLE: str(lifeline)},
        start_new_session=True,
    )
    pidfd = None
    try:
        pidfd = os.pidfd_open(process.pid)
        end = select.poll()
        end.register(pidfd, select.POLLIN)
        has_ended = end.poll(patience.total_seconds() * 1000)
    finally:
        # Before it is reaped: the group still has its number.
        os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
        if pidfd is not None:
            os.close(pidfd)
    return code if has_ended else None


def main() -> NoReturn:
    """Import the file."""
    die_with_writer(int(os.environ.pop(LIFELINE_VARIABLE)))
    folder, file = sys.argv[1:]
    child = os.fork()
    if child == 0:
        # What it raises, and threads that it starts, are of no matter here.
        try:
            DagsFolder(folder).import_file(file)
        finally:
            os._exit(_GOT_THROUGH)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        os._exit(code)
    with suppress(
        OSError
    ):  # SIGKILL, which needs it no more than others do that Python leaves alone
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
    os._exit(1)


if __name__ == "__main__":
    main()
