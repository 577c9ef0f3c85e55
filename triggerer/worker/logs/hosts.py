"""Finds out whether the log on this host is the log of a run's last attempt.

The attempts of a run may execute on several hosts, and the path of `home` may be equal on all of them. If `home` is a
shared folder, all attempts write one log. If each host has its own disk, the log on this host may belong to an earlier
attempt.

To tell the two cases apart, each executor creates an empty file `<home>/logs/.hosts/HOST`. In a shared folder, this
host also sees the files of the other hosts.
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
    # Other users must not use the new folders. Make each folder with its own call, because mkdir applies the mode only
    # to the last folder of a path.
    for folder in (hosts.parents[1], hosts.parent, hosts):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    host, _ = host_and_pid(executor)
    (hosts / host).touch(mode=0o600)


def is_log_of(path: str, executor: str | None) -> bool:
    """Return whether the executor writes the log at this path of this host, and not a log on its own host's disk.

    The log need not exist. If no host is recorded, it is unknown where the executor writes its logs: return True.

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
