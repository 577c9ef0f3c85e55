"""Records on which hosts executors write logs into a folder.

Executors on several hosts may have the same path as `home`, each on its own disk or all in a shared folder. If the
run's last attempt ran on another host, a log on this host's own disk is the log of an earlier attempt. So each
executor leaves an empty file in `<home>/logs/.hosts`, with the name of its host. A shared folder has the names of all
its hosts. The folder of a host that was renamed has the old and the new name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from triggerer.processes.instance_ids import host_and_pid, is_on_this_host

_HOSTS: Final = ".hosts"


def record_host(home: Path, executor: str) -> None:
    """Record that this executor writes logs below `home`.

    Raises:
        OSError: The file cannot be written.
    """
    hosts = home.resolve() / "logs" / _HOSTS
    # Only the user who runs this process can use new folders. mkdir applies its mode only to the last folder of a path.
    for folder in (hosts.parents[1], hosts.parent, hosts):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    host, _ = host_and_pid(executor)
    (hosts / host).touch(mode=0o600)


def is_log_of(path: str, executor: str | None) -> bool:
    """Whether a log at this path of this host is the log that the executor writes. The log need not exist.

    Also True if no executor has recorded its host there, because then nobody can tell.

    Args:
        path: A path of the form `<home>/logs/<dag>/<run>.log`.
        executor: The instance id of the executor of the run's last attempt.
    Raises:
        OSError: The folder cannot be read.
    """
    if executor is None or is_on_this_host(executor):
        return True
    hosts = Path(path).parents[1] / _HOSTS
    host, _ = host_and_pid(executor)
    return (hosts / host).exists() or not hosts.exists()
