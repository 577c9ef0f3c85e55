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


def _host() -> str:
    return socket.gethostname()[:40]
