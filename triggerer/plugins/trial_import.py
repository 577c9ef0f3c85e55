"""Tries an import of a DAG file in another process, before the service imports the file itself.

A changed DAG file may crash the process that imports it. The DAG processor survives, because it
imports files in child processes, and the triggers of the file's earlier version stay in force. To
load the classes of these triggers, the service itself imports the changed file. Without a trial,
the service would crash at every start.

`python -P -m triggerer.plugins.trial_import DAGS_FOLDER FILE` forks a child, which imports the file. If the file's code
kills its parent process, only the process of this module dies. The service survives.
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

_IMPORT_ENDED: Final = 90
"""The exit code if the importing process survived: the import returned, or raised an exception. The service can import
such a file.
"""


def try_import(folder: DagsFolder, file: Path, *, patience: timedelta) -> None:
    """Import the file in another process. Block until the process has ended.

    Raises:
        PluginError: The import crashes or exits its process, or takes too long, or no process can be started now.
    """
    try:
        lifeline, end = os.pipe()
        try:
            code = _run(folder, file, lifeline, patience)
        finally:
            os.close(lifeline)
            os.close(end)
    except OSError as error:
        raise PluginError(f"importing {file} cannot be tried now: {error.strerror}") from error
    if code is None:
        raise PluginError(f"importing {file} takes longer than {patience.total_seconds():g} s")
    if code != _IMPORT_ENDED:
        how = signal_name(-code) if code < 0 else f"exit code {code}"
        raise PluginError(
            f"importing {file} ends its process ({how})",
            hint="fix the file: the service does not import it as it is",
        )


def _run(folder: DagsFolder, file: Path, lifeline: int, patience: timedelta) -> int | None:
    """Return the exit code; None if the process took too long and was killed."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", __name__, str(folder.root), str(file)],
        stdin=subprocess.DEVNULL,
        # Discard the output. The DAG processor has logged the output of its own import of the file.
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
        # Kill before reaping. Until the process is reaped, no other process group can have this number.
        os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
        if pidfd is not None:
            os.close(pidfd)
    return code if has_ended else None


def main() -> NoReturn:
    """Import the file in a forked child, and end as the child ended."""
    die_with_writer(int(os.environ.pop(LIFELINE_VARIABLE)))
    folder, file = sys.argv[1:]
    child = os.fork()
    if child == 0:
        # After an exception, too. `os._exit` does not wait for threads that the file started.
        try:
            DagsFolder(folder).import_file(file)
        finally:
            os._exit(_IMPORT_ENDED)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        os._exit(code)
    # Python refuses to set the action of SIGKILL (OSError). But SIGKILL always has its default action.
    with suppress(OSError):
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
    os._exit(1)


if __name__ == "__main__":
    main()
