"""The ids of the service's instances."""

from __future__ import annotations

import os
import socket
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Final
from uuid import uuid4

_LONGEST_HOST: Final = 40
"""An id contains at most this number of characters of the host's name. The database stores 80 characters of an id, and
a host's name alone can have 64."""


def new_instance_id() -> str:
    """Return `<host>:<pid>:<random>`, a new id at every call.

    The random part ends with a digest of this machine's boot and of the PID namespace, see `is_known_dead`.
    """
    return f"{this_process()}:{uuid4().hex[:8]}{_pid_space()}"


def this_process() -> str:
    """Return `<host>:<pid>` of this process. Every instance id that this process makes begins with this text."""
    return f"{_host()}:{os.getpid()}"


def process_of(instance_id: str) -> str:
    """Return `<host>:<pid>` of the instance with this id."""
    return instance_id.rpartition(":")[0]


def host_and_pid(instance_id: str) -> tuple[str, int | None]:
    """Return the host and the process id that an instance's id contains. None: the id contains no process id."""
    host, _, pid = process_of(instance_id).rpartition(":")
    return host, int(pid) if pid.isdecimal() else None


@cache
def release() -> str:
    """Return the release of this code, such as `0.1.0`."""
    from importlib.metadata import version

    return version("triggerer")


def is_on_this_host(instance_id: str) -> bool:
    """True if the instance with this id runs, or ran, on this host."""
    return instance_id.rsplit(":", 2)[0] == _host()


def is_known_dead(instance_id: str) -> bool:
    """True if the instance's process is gone. False: it lives, or this process cannot tell.

    Another machine or container may have this host's name, and its processes are not visible here. So an instance can
    be known to be dead only if it was started since this machine's boot, and in the PID namespace of this process.
    """
    return instance_id.endswith(_pid_space()) and has_no_process(process_of(instance_id))


def has_no_process(process: str) -> bool:
    """True if a process `<host>:<pid>` has this host's name, and no process that is visible here has the id."""
    host, _, pid = process.rpartition(":")
    if host != _host():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (ValueError, PermissionError, OverflowError):
        return False
    return False


@cache
def _pid_space() -> str:
    """Return a digest of the machine's boot id and the PID namespace. Only within these are process ids unique.

    If these cannot be read, return a random text, so that no other process is known to be dead. For instance, systemd's
    `ProcSubset=pid` hides `/proc/sys`.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        namespace = Path("/proc/self/ns/pid").readlink()
    except OSError:
        return uuid4().hex[:4]
    return sha256(f"{boot} {namespace}".encode()).hexdigest()[:4]


def _host() -> str:
    """Return this host's name. The end of a long name is replaced by a digest of the name."""
    name = socket.gethostname()
    if len(name) <= _LONGEST_HOST:
        return name
    digest = sha256(name.encode()).hexdigest()[:8]
    return f"{name[: _LONGEST_HOST - 9]}-{digest}"
