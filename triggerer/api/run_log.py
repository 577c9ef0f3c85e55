"""Reads the log of a run: on this machine, from the executor's machine, or from the bucket of `[logs] ship`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio
from anyio import to_thread
from anyio.streams.buffered import BufferedByteReceiveStream

from triggerer.api.context import ApiContext
from triggerer.domain.log_requests import LONGEST_REQUEST, VALID_S, LogRequest
from triggerer.errors import BucketError, NoLog, ServerBusy, TriggererError
from triggerer.operations.reading.run_logs import no_log, unreadable
from triggerer.operations.reading.shipped_logs import LogCopy, open_copy
from triggerer.processes.instance_ids import host_and_pid, is_on_this_host
from triggerer.store.database.transactions import database_now
from triggerer.store.listing.views import RunView
from triggerer.store.runs.log_addresses import log_address_for
from triggerer.worker.logs.hosts import is_log_of
from triggerer.worker.logs.limit import next_hole

_CONNECT_S: Final = 5.0
_READ_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class LogPart:
    """Some bytes of a log."""

    start: int
    size: int
    """The length of the whole log."""
    body: bytes
    hole: tuple[int, int] | None
    """The positions where the first hole at or after `start` begins and ends, or None if no hole follows.

    A hole is a range of bytes that were cut from a long log, see `triggerer.worker.logs.limit`.
    """
    path: str | None
    """The path of the file on its machine. None: only the copy in the bucket is left."""
    host: str | None = None
    """The machine of the run's executor, which writes the file."""
    is_here: bool = False
    """Whether the file was read on this machine. If `host` is another machine, the file is in a shared folder."""

    def is_of_same_log(self, earlier: LogPart) -> bool:
        """Return whether this part and the earlier part belong to one log.

        False in these cases:

        - The run's next attempt writes another log.
        - The file was truncated or replaced.
        - The log was replaced by its copy in the bucket, and the log had holes. The copy lacks the holes, so its
          positions are not the positions of the log.
        """
        pairs = [(self.path, earlier.path)]
        if not (self.is_here and earlier.is_here):
            pairs.append((self.host, earlier.host))
        is_moved = any(None not in pair and pair[0] != pair[1] for pair in pairs)
        return not is_moved and self.size >= earlier.size

    def without_hole(self) -> tuple[bytes, int]:
        """Return the bytes before the first hole, and the position where the next part begins."""
        end = self.start + len(self.body)
        if self.hole is None or self.hole[0] >= end:
            return self.body, end
        return self.body[: self.hole[0] - self.start], self.hole[1]


class LogReader:
    """Reads one run's log for one request. Made by `open_log`."""

    def __init__(self, api: ApiContext, row: RunView, resources: AsyncExitStack) -> None:
        self.row = row
        """The run. Its state may be newer than at the start of the request."""
        self._api = api
        self._resources = resources
        self._copy: LogCopy | None = None
        """The copy in the bucket. Set when the log could not be read from a machine, and used from then on."""

    async def read(self, start: int, limit: int) -> LogPart:
        """Return bytes of the log.

        Args:
            start: The position of the first byte. A negative number counts from the end.
        Raises:
            TriggererError: There is no log, or the log cannot be read.
            ServerBusy: The executor that has the log does not answer, and the bucket has no copy of the log. Or the
                bucket cannot be read.
        """
        if self._copy is not None:
            return await self._read_copy(self._copy, start, limit)
        try:
            return await _read_at_machine(self._api, self.row, start, limit)
        except (NoLog, ServerBusy):
            copy = await self._find_copy()
            if copy is None:
                raise
            self._copy = copy
            return await self._read_copy(copy, start, limit)

    async def _find_copy(self) -> LogCopy | None:
        ship = self._api.settings.logs.ship
        with _unavailable():
            async with AsyncExitStack() as opened:
                copy = await opened.enter_async_context(open_copy(ship, self.row))
                if copy is None or await copy.read(0, 1) is None:
                    return None
                # Only a copy that exists stays open until the request has ended.
                await self._resources.enter_async_context(opened.pop_all())
                return copy

    async def _read_copy(self, copy: LogCopy, start: int, limit: int) -> LogPart:
        with _unavailable():
            part = await copy.read(start, limit)
        if part is None:
            raise no_log(self.row)
        host = _host_of(self.row.executor)
        return LogPart(part.start, part.size, part.body, None, self.row.log_path, host)


class GrowingLog:
    """Reads a log as it grows. A log that replaces it is read from its beginning, see `LogPart.is_of_same_log`.

    Args:
        first: The part of the log that was read last. The reading begins at the start of this part.
    """

    def __init__(self, log: LogReader, first: LogPart) -> None:
        self._log = log
        self._last = first
        self._position = first.start

    async def read_on(self, limit: int) -> bytes | None:
        """Return the next bytes, or None if the log has no further bytes yet. Skip a part that was cut (a hole).

        Raises:
            TriggererError, ServerBusy: See `LogReader.read`.
        """
        part = await self._log.read(self._position, limit)
        if not part.is_of_same_log(self._last):
            part = await self._log.read(0, limit)
        self._last = part
        body, self._position = part.without_hole()
        return body if part.body else None


@asynccontextmanager
async def open_log(api: ApiContext, row: RunView) -> AsyncIterator[LogReader]:
    """Yield a reader of the run's log."""
    async with AsyncExitStack() as resources:
        yield LogReader(api, row, resources)


@contextmanager
def _unavailable() -> Iterator[None]:
    try:
        yield
    except BucketError as error:
        raise ServerBusy(str(error), hint=error.hint) from error


async def _read_at_machine(api: ApiContext, row: RunView, start: int, limit: int) -> LogPart:
    if row.log_path is None:
        raise no_log(row)
    try:
        part = await to_thread.run_sync(_read_here, row.log_path, row.executor, start, limit)
    except FileNotFoundError:
        part = None
    except OSError as error:
        raise unreadable(row, error) from error
    if part is not None:
        return part
    if row.executor is None or is_on_this_host(row.executor):
        raise no_log(row)
    return await _read_there(api, row, start, limit)


def _read_here(path: str, executor: str | None, start: int, limit: int) -> LogPart | None:
    """Return bytes of the file at `path`. None: an executor on another host has the log.

    Raises:
        OSError: There is no such file, or it cannot be read.
    """
    if not is_log_of(path, executor):
        return None
    with Path(path).open("rb", buffering=0) as log:
        size = log.seek(0, 2)
        first = max(0, size + start) if start < 0 else start
        if first >= size:
            # Do not seek: `first` comes from the client, and may be too large for a file position.
            return LogPart(first, size, b"", None, path, _host_of(executor), is_here=True)
        hole = next_hole(log.fileno(), first)
        log.seek(first)
        body = log.read(limit)
        return LogPart(first, size, body, hole, path, _host_of(executor), is_here=True)


def _host_of(executor: str | None) -> str | None:
    return None if executor is None else host_and_pid(executor)[0]


async def _read_there(api: ApiContext, row: RunView, start: int, limit: int) -> LogPart:
    assert row.executor is not None
    async with api.use.reading() as session:
        address = await log_address_for(session, row.executor)
        now = (await database_now(session)).timestamp()
    if address is None:
        raise no_log(row)
    host, _, port = address.rpartition(":")
    request = LogRequest(row.dag_id, row.run_id, start, limit, now + VALID_S)
    try:
        with anyio.fail_after(_CONNECT_S):
            stream = await anyio.connect_tcp(host.strip("[]"), int(port))
        async with stream:
            with anyio.fail_after(_READ_S):
                await stream.send(request.signed(await api.service_key()))
                received = BufferedByteReceiveStream(stream)
                head = json.loads(await received.receive_until(b"\n", LONGEST_REQUEST))
                if "error" in head:
                    raise no_log(row)
                body = (
                    await received.receive_exactly(int(head["length"])) if head["length"] else b""
                )
    except (
        OSError,
        TimeoutError,
        ValueError,
        anyio.BrokenResourceError,
        anyio.EndOfStream,
        anyio.IncompleteRead,
        anyio.DelimiterNotFound,
    ) as error:
        raise ServerBusy(
            f"the executor at {address} does not send the log of {row.run_id!r}: {error!r}",
            hint="see [executor] log_address on its machine",
        ) from error
    hole = head["hole"]
    where = None if hole is None else (int(hole[0]), int(hole[1]))
    start, size = int(head["start"]), int(head["size"])
    return LogPart(start, size, body, where, row.log_path, _host_of(row.executor))


async def read_whole(
    api: ApiContext, row: RunView, *, size: int, chunk_bytes: int
) -> AsyncIterator[bytes]:
    """Yield the log in chunks, up to the position `size`. Holes are left out.

    Raises:
        TriggererError: The log was replaced by another log or a copy after its beginning was yielded.
        TriggererError, ServerBusy: See `LogReader.read`.
    """
    start = 0
    last: LogPart | None = None
    async with open_log(api, row) as log:
        while start < size:
            part = await log.read(start, min(chunk_bytes, size - start))
            if last is not None and not part.is_of_same_log(last):
                raise TriggererError(
                    f"the log of {row.run_id!r} was replaced while it was read",
                    hint="send the request again",
                )
            if not part.body:
                return
            last = part
            body, start = part.without_hole()
            if body:
                yield body
