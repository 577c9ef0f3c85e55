"""Serves the logs of this machine's runs to the API on another machine.

Requests are signed. The key is in the database, see `triggerer.domain.log_requests`.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Final

import anyio
import structlog
from anyio.abc import SocketAttribute, SocketStream, TaskStatus
from anyio.streams.buffered import BufferedByteReceiveStream

from triggerer.domain.log_requests import LONGEST_REQUEST, LogRequest, read_request
from triggerer.domain.run_logs import log_path
from triggerer.errors import ConfigurationError, TransientStoreError
from triggerer.store.access.service_key import service_key
from triggerer.store.database.transactions import Database, database_now
from triggerer.store.runs.log_addresses import publish_log_address
from triggerer.worker.logs.limit import next_hole

_log = structlog.get_logger(__name__)

_CHUNK_BYTES: Final = 65_536
_REQUEST_S: Final = 10.0
_ANSWER_S: Final = 120.0
_MOST: Final = 32
_PUBLISH_EVERY_S: Final = 60.0


class LogServer:
    """Listens at `[executor] log_address`.

    Args:
        address: `host:port`. With port 0 the kernel chooses a free port.
    """

    def __init__(self, database: Database, instance_id: str, home: Path, address: str) -> None:
        self._database = database
        self._instance_id = instance_id
        self._home = home
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise ConfigurationError(
                f"[executor] log_address {address!r} is not host:port",
                hint="for example worker-1.example.com:8793; with port 0 the kernel chooses a free port",
            )
        self._host, self._port = host.strip("[]"), int(port)
        self._connections = anyio.Semaphore(_MOST)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled.

        Raises:
            ConfigurationError: The address cannot be bound.
        """
        try:
            listener = await anyio.create_tcp_listener(local_host=self._host, local_port=self._port)
        except OSError as error:
            raise ConfigurationError(
                f"[executor] log_address {self._host}:{self._port} cannot be bound: {error}",
                hint="name an address of this machine and a free port",
            ) from error
        port = listener.extra(SocketAttribute.local_port)
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(self._publish, f"{self._host}:{port}")
            task_status.started()
            await listener.serve(self._serve)

    async def _publish(self, address: str) -> None:
        """Store the address repeatedly, because the row of an instance that seemed dead may have been deleted."""
        while True:
            try:
                async with self._database.transaction() as session:
                    await publish_log_address(session, self._instance_id, address)
            except TransientStoreError as error:
                _log.debug("the address of the logs was not stored", error=str(error))
            await anyio.sleep(_PUBLISH_EVERY_S)

    async def _serve(self, stream: SocketStream) -> None:
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream):
            async with stream, self._connections:
                with anyio.move_on_after(_ANSWER_S):
                    await self._answer(stream)

    async def _answer(self, stream: SocketStream) -> None:
        try:
            with anyio.fail_after(_REQUEST_S):
                line = await BufferedByteReceiveStream(stream).receive_until(b"\n", LONGEST_REQUEST)
            key = await service_key(self._database)
            async with self._database.reading() as session:
                now = (await database_now(session)).timestamp()
        except (TimeoutError, anyio.DelimiterNotFound, anyio.IncompleteRead, TransientStoreError):
            return
        request = read_request(line, key, now)
        if request is None:
            await _send_head(stream, error="refused")
            return
        path = Path(log_path(str(self._home), request.dag_id, request.run_id))
        try:
            async with await anyio.open_file(path, "rb") as log:
                await _send_part(stream, log, request)
        except FileNotFoundError:
            await _send_head(stream, error="missing")
        except OSError as error:
            await _send_head(stream, error=str(error))


async def _send_part(
    stream: SocketStream, log: anyio.AsyncFile[bytes], request: LogRequest
) -> None:
    """Send the head and the requested bytes, or fewer bytes if the log cannot be read to the end.

    Raises:
        OSError: The log cannot be read at all. No head was sent.
    """
    size = await log.seek(0, 2)
    start = max(0, size + request.start) if request.start < 0 else request.start
    left = max(0, min(request.limit, size - start))
    hole = next_hole(log.wrapped.fileno(), start)
    await _send_head(stream, size=size, start=start, length=left, hole=hole)
    if not left:
        # `start` may be a number that no file position can have.
        return
    try:
        await log.seek(start)
        while left and (chunk := await log.read(min(left, _CHUNK_BYTES))):
            left -= len(chunk)
            await stream.send(chunk)
    except OSError as error:
        # Send no error text, because the client would read the text as a part of the log. The client notices the error:
        # it receives fewer bytes than the head says.
        _log.warning("a log cannot be sent", log=log.name, error=str(error))


async def _send_head(stream: SocketStream, **head: object) -> None:
    await stream.send(json.dumps(head).encode() + b"\n")
