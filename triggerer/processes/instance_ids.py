"""How the instances of services are named."""

from __future__ import annotations

import os
import socket
from uuid import uuid4


def new_instance_id() -> str:
    """Return `<host>:<pid>:<random>`, another one at every call."""
    return f"{_host()}:{os.getpid()}:{uuid4().hex[:8]}"


def is_on_this_host(instance_id: str) -> bool:
    """Whether the instance with this id runs, or ran, where we do."""
    return instance_id.rsplit(":", 2)[0] == _host()


def is_known_dead(instance_id: str) -> bool:
    """Whether the process of this instance ran here and is gone; False where only its heartbeats can tell."""
    if not is_on_this_host(instance_id):
        return False
    try:
        os.kill(int(instance_id.rsplit(":", 2)[1]), 0)
    except ProcessLookupError:
        return True
    except (ValueError, PermissionError, OverflowError):
        return False
    return False


def _host() -> str:
    return socket.gethostname()[:40]
