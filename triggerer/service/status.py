"""Serves the status of this process: whether it is alive, whether it is ready, and its metrics."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog

from triggerer.observability.metrics.exposition import CONTENT_TYPE, GATHERING
from triggerer.operations.status import delete_left_sockets, socket_path
from triggerer.processes.instance_ids import this_process
from triggerer.service.metrics import service_samples
from triggerer.service.status_server import Answer, Routes, serving, tcp_listener, unix_listener
from triggerer.streams.supervision.blocked_loop import Stall, look_at_loop

if TYPE_CHECKING:
    from triggerer.config import Settings
    from triggerer.store.database.transactions import Database

_log = structlog.get_logger(__name__)

_JSON: Final = "application/json"
_PATIENCE_S: Final = 0.5
"""An event loop that does not answer within this time counts as blocked."""


class Readiness:
    """Knows whether this process has started and has the leases that it needs."""

    def __init__(self) -> None:
        self._checks: dict[str, Callable[[], bool]] = {}
        self.is_started = False

    def add(self, name: str, check: Callable[[], bool]) -> None:
        """Add a condition. `check` is called from another thread, and must neither wait nor query the database.

        Args:
            name: The condition's name in the list of missing conditions.
        """
        self._checks[name] = check

    def missing(self) -> list[str]:
        """Return the names of the conditions that this process does not meet; empty if it is ready."""
        if not self.is_started:
            return ["the start"]
        return [name for name, check in list(self._checks.items()) if not check()]


class Liveness:
    """Finds out, from any thread, whether the event loop is blocked."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def find_stall(self) -> Stall | None:
        """Return what blocks the event loop, or None if it answers in time."""
        answered = threading.Event()
        began = time.monotonic()
        try:
            self._loop.call_soon_threadsafe(answered.set)
        except RuntimeError:
            return None  # the loop is closed, because the process ends
        if answered.wait(_PATIENCE_S):
            return None
        stall = look_at_loop(self._loop, self._thread, seconds=time.monotonic() - began)
        return None if answered.is_set() else stall


@contextmanager
def status_served(settings: Settings, database: Database, readiness: Readiness) -> Iterator[None]:
    """Serve the status of this process until the end of the block. Call it on the event loop.

    Raises:
        ConfigurationError: The address in `[metrics]` cannot be used.
    """
    liveness = Liveness()
    routes: Routes = {
        "/metrics": _metrics,
        "/livez": partial(_livez, liveness),
        "/readyz": partial(_readyz, readiness),
    }
    chosen = settings.metrics
    with ExitStack() as stack:
        delete_left_sockets(settings.core.home)
        path = socket_path(settings.core.home, this_process())
        listeners = [stack.enter_context(unix_listener(path))]
        if chosen.port:
            listeners.append(tcp_listener(chosen.host, chosen.port))
            host, port, *_ = listeners[-1].getsockname()
            _log.info("metrics and probes are at", url=f"http://{host}:{port}")
        stack.callback(GATHERING.add(partial(service_samples, database)))
        stack.enter_context(serving(routes, listeners))
        yield


def _metrics() -> Answer:
    return Answer(200, CONTENT_TYPE, GATHERING.text())


def _livez(liveness: Liveness) -> Answer:
    stall = liveness.find_stall()
    if stall is None:
        return _json(200, {"status": "alive"})
    return _json(
        503,
        {
            "status": "blocked",
            "seconds": round(stall.seconds, 2),
            "trigger": stall.trigger,
            "stream": stall.stream,
            "task": stall.task,
            "where": stall.stack.strip().rsplit("\n  File ", 1)[-1],
        },
    )


def _readyz(readiness: Readiness) -> Answer:
    missing = readiness.missing()
    if not missing:
        return _json(200, {"status": "ready"})
    return _json(503, {"status": "not ready", "missing": missing})


def _json(status: int, value: dict[str, Any]) -> Answer:
    return Answer(status, _JSON, json.dumps(value, ensure_ascii=False).encode() + b"\n")
