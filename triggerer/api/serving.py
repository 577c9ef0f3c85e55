"""Serves the API on a socket until it is cancelled."""

from __future__ import annotations

import logging
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

import anyio
import structlog
import uvicorn
from anyio.lowlevel import checkpoint_if_cancelled

from triggerer.api.app import make_app
from triggerer.api.connections import MOST_CONNECTIONS, BoundedProtocol, limit_unread
from triggerer.api.context import ApiContext, DatabaseUse
from triggerer.api.tls import Certificate, certificate_of
from triggerer.config import Settings
from triggerer.store.database.transactions import Database

_log = structlog.get_logger(__name__)

_GRACE: Final = timedelta(seconds=5)
"""How long open requests may still take once the API begins to stop. Streamed answers end at once."""


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, on_start: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_start = on_start

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_start()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing. Without this, uvicorn would replace the signal handlers of `handling_stop_signals`."""
        yield


async def serve(
    settings: Settings,
    database: Database,
    listener: socket.socket,
    *,
    on_start: Callable[[], None] = lambda: None,
) -> None:
    """Answer requests until cancelled. Requests that are open at that moment may finish within `_GRACE`.

    Args:
        on_start: Called once, as soon as requests are answered.
    """
    # uvicorn would log its start and end in addition to our own lines. It also warns of each request that is no HTTP,
    # so any client could fill the log.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    logging.getLogger("uvicorn.error").addFilter(_is_news)
    _allow_descriptors()
    limit_unread(listener)
    context = ApiContext(settings, database, DatabaseUse(database))
    certificate = certificate_of(settings.api)
    server = _Server(_config(make_app(context), certificate), on_start)
    async with anyio.create_task_group() as tasks:
        try:
            with anyio.CancelScope(shield=True) as serving:
                tasks.start_soon(_stop_when_cancelled, context, server)
                if certificate is not None:
                    tasks.start_soon(certificate.follow)
                await server.serve(sockets=[listener])
        finally:
            serving.cancel()
        tasks.cancel_scope.cancel()
    # The server has run under a shield. If it ended because of a cancellation, raise the cancellation here.
    await checkpoint_if_cancelled()


def _is_news(record: logging.LogRecord) -> bool:
    """Return False for uvicorn's line about an answer that was broken off. The gate has logged the reason."""
    return record.getMessage() != "ASGI callable returned without completing response."


def _allow_descriptors() -> None:
    """Raise this process's limit of open files if it is too low for `MOST_CONNECTIONS`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * MOST_CONNECTIONS
    if soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


async def _stop_when_cancelled(context: ApiContext, server: _Server) -> None:
    try:
        await anyio.sleep_forever()
    finally:
        # End the streamed answers first, because uvicorn would wait for them.
        context.closing.set()
        server.should_exit = True


def _config(app: Any, certificate: Certificate | None) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        http=BoundedProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=True,
        proxy_headers=False,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=int(_GRACE.total_seconds()),
        h11_max_incomplete_event_size=32 * 1024,
    )
    config.load()
    # Use our own TLS context. The context that uvicorn makes allows old cipher suites, and asks for a key's password on
    # the terminal.
    config.ssl = None if certificate is None else certificate.context
    return config
