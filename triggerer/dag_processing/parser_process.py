"""The service's side of the parser: starts it, sends it files, and restarts it when it dies."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

import anyio
import structlog
from anyio.abc import TaskStatus

from triggerer.backoff import Backoff
from triggerer.child_process import ChildProcess
from triggerer.dag_processing.answers import file_in, read_answer
from triggerer.domain.parsed import ParsedFile
from triggerer.errors import ConfigurationError
from triggerer.ipc import Channel, ChannelClosed, MalformedFrame
from triggerer.synchronization import AutoResetEvent

_log = structlog.get_logger(__name__)

_CLOSE_TIMEOUT_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class ParserSettings:
    """What the parser needs at its start."""

    dags_folder: Path
    allowed_modules: tuple[str, ...] = ()
    file_timeout: timedelta = timedelta(seconds=30)
    # More than there are cores: a file that hangs must not hold up the others.
    at_once: int = 4


class ParserProcess:
    """One parser, as long as `run` runs. Files that a parser had not answered when it died are sent to the next."""

    def __init__(self, settings: ParserSettings, deliver: Callable[[ParsedFile], None]) -> None:
        self._settings = settings
        self._deliver = deliver
        self._unanswered: dict[str, None] = {}
        self._unsent: dict[str, None] = {}
        self._has_work = AutoResetEvent()
        self.pid: int | None = None
        """Of the process, while there is one."""

    @property
    def is_idle(self) -> bool:
        """Whether every file was answered."""
        return not self._unanswered

    @property
    def unanswered(self) -> Collection[str]:
        """The files that are being parsed, or are to be."""
        return self._unanswered.keys()

    def parse_nowait(self, paths: Iterable[str]) -> None:
        """Have these files parsed; each is delivered once, as it is when the parser reads it."""
        for path in paths:
            self._unanswered[path] = self._unsent[path] = None
        self._has_work.set()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Keep a parser running until cancelled.

        Raises:
            ConfigurationError: The first one cannot be started.
        Cancellation: The parser is ended, with the forks that read files.
        """
        backoff = Backoff(first=0.1, longest=5.0, healthy_after=50.0)
        is_first = True
        while True:
            started = anyio.current_time()
            try:
                async with self._process() as process:
                    if is_first:
                        is_first = False
                        task_status.started()
                    await self._converse(process)
            except MalformedFrame as error:
                _log.error("the DAG parser is ended", reason=str(error))
            except ChannelClosed:
                pass
            except OSError as error:
                if is_first:
                    raise ConfigurationError(
                        f"the parser of DAG files cannot be started: {error.strerror}",
                        hint="this user, or its container, has as many processes or file descriptors as it may have",
                    ) from error
                # Out of memory, of processes or of file descriptors: those who have them may give them back.
                _log.error("the DAG parser cannot be started", reason=str(error))
            # It runs no users' code itself, so it was killed: by the kernel for memory, or by an operator.
            delay = backoff.next_delay(anyio.current_time() - started)
            _log.warning(
                "the DAG parser is started again",
                files=len(self._unanswered),
                retry_after_s=round(delay, 3),
            )
            self._unsent = dict(self._unanswered)
            self._has_work.set()
            await anyio.sleep(delay)

    @asynccontextmanager
    async def _process(self) -> AsyncIterator[ChildProcess]:
        process = await ChildProcess.start("triggerer.dag_processing.parser")
        self.pid = process.pid
        try:
            await process.channel.send(
                {
                    "folder": str(self._settings.dags_folder),
                    "allowed_modules": list(self._settings.allowed_modules),
                    "timeout_s": self._settings.file_timeout.total_seconds(),
                    "at_once": self._settings.at_once,
                }
            )
            # It is ready, and takes the next frame.
            await process.channel.receive()
            yield process
        finally:
            self.pid = None
            # The parser then kills and reaps its forks, and ends.
            process.channel.shut_down()
            await process.aclose(grace_s=_CLOSE_TIMEOUT_S)

    async def _converse(self, process: ChildProcess) -> None:
        accepted = anyio.Semaphore(1, max_value=1)
        channel = process.channel
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(process.supervise)
            tasks.start_soon(self._ask, channel, accepted)
            try:
                await self._listen(channel, accepted)
            except MalformedFrame as error:
                _log.error("the DAG parser is ended", reason=str(error))
                process.kill()
                tasks.cancel_scope.cancel()
            except ChannelClosed:
                tasks.cancel_scope.cancel()

    async def _ask(self, channel: Channel, accepted: anyio.Semaphore) -> None:
        while True:
            while not self._unsent:
                await self._has_work.wait()
            # One frame at a time: the parser waits for the channel by `select`, see `ChildChannel.fileno`.
            await accepted.acquire()
            paths, self._unsent = list(self._unsent), {}
            try:
                await channel.send({"parse": paths})
            except ChannelClosed:
                return  # `_listen` notices it too, and `run` sends everything again

    async def _listen(self, channel: Channel, accepted: anyio.Semaphore) -> None:
        while True:
            answer = read_answer(await channel.receive())
            if "accepted" in answer:
                with suppress(ValueError):
                    accepted.release()
                continue
            parsed = file_in(answer)
            if output := answer["output"].strip():
                _log.info("A DAG file wrote while it was read", file=parsed.path, output=output)
            # If it is to be sent again, this is the result of an older file.
            if parsed.path not in self._unsent and parsed.path in self._unanswered:
                del self._unanswered[parsed.path]
                self._deliver(parsed)
