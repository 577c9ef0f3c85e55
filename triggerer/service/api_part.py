"""The API as a part of the service: its child process, and the administrator's first token."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
import structlog
from anyio.abc import TaskStatus

from triggerer.backoff import Backoff
from triggerer.domain.actors import SERVICE, Actor, Role
from triggerer.errors import ConfigurationError
from triggerer.operations.access.tokens import create_login_code, create_token
from triggerer.processes.child_process import ChildProcess
from triggerer.processes.ipc import ChannelClosed
from triggerer.store.access.tokens import count_tokens
from triggerer.store.database.wakeups.signals import Signal

if TYPE_CHECKING:
    from triggerer.config import Settings
    from triggerer.store.database.transactions import Database

_log = structlog.get_logger(__name__)

_MODULE: Final = "triggerer.api.child"
_GRACE_S: Final = 8.0
"""The time that the child has to stop. The child gives unfinished requests five seconds."""
_COALESCE: Final = timedelta(seconds=1)
TOKEN_FILE: Final = "api-token"
_FIRST_START: Final = Actor("first start", Role.ADMIN, SERVICE)


class ApiChild:
    """Starts the API's process at the first connection, or at once if `[api] start` is "eager".

    A process that has died is started again, at the next connection or at once.
    """

    def __init__(self, settings: Settings, database: Database, listener: socket.socket) -> None:
        self._settings = settings
        self._database = database
        self._listener = listener
        self._is_eager = settings.api.start == "eager"

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled. Then stop the child, which first finishes its requests if they are quick."""
        task_status.started()
        backoff = Backoff(first=0.2, longest=3.0, healthy_after=10.0)
        while True:
            if not self._is_eager:
                # Wait for a connection, and let the child accept it. Until then no child process uses memory.
                await anyio.wait_readable(self._listener)
            started = anyio.current_time()
            try:
                code = await self._run_child()
            except OSError as error:
                _log.error("the API's process cannot be started", error=str(error))
            else:
                _log.warning("the API's process ended; it is started again", exit_code=code)
            await anyio.sleep(backoff.next_delay(anyio.current_time() - started))

    async def _run_child(self) -> int:
        from triggerer.api.child import order_of

        child = await ChildProcess.start(_MODULE, inherits=[self._listener.fileno()])
        async with _closed(child), anyio.create_task_group() as tasks:
            tasks.start_soon(child.supervise)
            with suppress(ChannelClosed):
                await child.channel.send(order_of(self._settings, self._listener))
                tasks.start_soon(self._pass_on_announcements, child)
            await child.gone.wait()
            tasks.cancel_scope.cancel()
        return child.returncode or 0

    async def _pass_on_announcements(self, child: ChildProcess) -> None:
        """Send the announced changes to the child, at most once a second. The API passes them on to its clients."""
        with self._database.wakeups.subscribe(*Signal) as subscription, suppress(ChannelClosed):
            while True:
                announced = await subscription.wait()
                frame = {signal.value: sorted(subjects) for signal, subjects in announced.items()}
                await child.channel.send({"announced": frame})
                await anyio.sleep(_COALESCE.total_seconds())


@asynccontextmanager
async def _closed(child: ChildProcess) -> AsyncIterator[None]:
    try:
        yield
    finally:
        child.terminate()
        await child.aclose(_GRACE_S)


async def prepare_access(settings: Settings, database: Database, url: str) -> None:
    """Log the web page's address. If there is no token yet, write a first administrator's token to `home/api-token`.

    If standard error is a terminal, also print a link there that signs in once. The link is never logged, because other
    people read logs.

    Raises:
        ConfigurationError: The file cannot be written; no token was stored.
        StoreUnavailable: The database does not answer.
    """
    async with database.transaction() as session:
        is_first = await count_tokens(session) == 0
        if is_first:
            made = await create_token(
                session, _FIRST_START, role=Role.ADMIN, name=_FIRST_START.name
            )
            _write_secret(settings.core.home / TOKEN_FILE, made.token)
        code = None
        if is_first and sys.stderr.isatty():
            code = await create_login_code(session, _FIRST_START, role=Role.ADMIN)
    _log.info("the page and the API are at", url=url)
    if code is not None:
        sys.stderr.write(f"Sign in once with this link: {url}/login?code={code}\n")


def _write_secret(path: Path, secret: str) -> None:
    try:
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secret + "\n")
    except OSError as error:
        raise ConfigurationError(
            f"the administrator's token cannot be written to {path}: {error.strerror}",
            hint="make sure that [core] home has free space, and that the service's user can write there",
        ) from error
