"""Waits for a master or a Spark Connect server that does not answer for a while, for instance during a restart."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from triggerer.config import SparkSettings
from triggerer.errors import SubmitFailed
from triggerer.worker.spark.sessions.reachability import (
    connect_endpoint,
    master_endpoints,
    require_reachable,
    without_parameters,
)
from triggerer.worker.spark.settings import CONNECT, master_of, mode_of

_LOOK_EVERY_S: Final = 0.5


def await_cluster(settings: SparkSettings, tell: Callable[[str | None], None]) -> None:
    """Wait until the master or the server accepts connections. A master without an address (`yarn`) needs no wait.

    Args:
        tell: Receives the reason when a wait begins, such as `the Spark master ..., which does not answer`. Receives
            None when the wait ends.
    Raises:
        SubmitFailed: The master or the server has not answered for `cluster_patience`.
    """
    if mode_of(settings) == CONNECT:
        remote = settings.remote or ""
        name = f"The Spark Connect server {without_parameters(remote)}"
        endpoints = [connect_endpoint(remote)]
    else:
        name = f"The Spark master {master_of(settings)}"
        endpoints = master_endpoints(master_of(settings))
    try:
        require_reachable(name, endpoints)
    except SubmitFailed:
        patience_s = settings.cluster_patience.total_seconds()
        if not patience_s:
            raise
    else:
        return
    until = time.monotonic() + patience_s
    tell(f"{name[0].lower()}{name[1:]}, which does not answer")
    try:
        while True:
            # No event tells that a port is open again.
            time.sleep(_LOOK_EVERY_S)
            try:
                require_reachable(name, endpoints)
            except SubmitFailed as absent:
                if time.monotonic() >= until:
                    raise SubmitFailed(
                        f"{absent.message} (the run waited {patience_s:g} s for it: [spark] cluster_patience)",
                        hint=absent.hint,
                    ) from absent
            else:
                return
    finally:
        tell(None)
