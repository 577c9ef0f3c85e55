"""The service's side of a parser process: starts it, sends it files, and starts another one when it dies."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import anyio
import structlog
from anyio.abc import TaskStatus

from triggerer.backoff import Backoff
from triggerer.dag_processing.answers import file_in, read_answer
from triggerer.domain.dag_files.parsed import ParsedFile
from triggerer.errors import ConfigurationError
from triggerer.observability.logging_setup import names_if_few
from triggerer.processes.child_process import ChildProcess
from triggerer.processes.ipc import Channel, ChannelClosed, MalformedFrame
from triggerer.synchronization import AutoResetEvent

_log = structlog.get_logger(__name__)

_CLOSE_TIMEOUT_S: Final = 2.0
_SILENCE_S: Final = 10.0
"""A busy parser that is silent for longer than the file timeout plus this time is killed."""
_SILENT_PERIODS: Final = 8
"""The permitted time of silence consists of this number of periods, each with its own timer.

When a suspended service (SIGSTOP) continues, the running timer may expire at once. A single timer would then kill a
parser that had no chance to answer.
"""


@dataclass(frozen=True, slots=True)
class ParserSettings:
    """The settings that the parser receives at its start."""

    dags_folder: Path
    allowed_modules: tuple[str, ...] = ()
    file_timeout: timedelta = timedelta(seconds=30)
    # The number of files that are read at the same time. If one file hangs, other files are still read.
    at_once: int = 4
    pools: frozenset[str] | None = None
    """The names in `[pools]`. None: the pools are unknown, and a task may name any pool."""


class ParserProcess:
    """Runs one parser at a time. When a parser dies, the next parser receives the files that the first had not begun.

    Args:
        deliver: Called with the definitions of a file.
        record_death: Called when a parser has died, with its exit code and the files that it was reading. The next
            parser does not receive these files. A file that was requested again meanwhile is not among them, because
            its newer version was not read yet.
        backoff: The delays before the next parser starts.
        is_on_demand: True to run a process only while there are files to read.
    """

    def __init__(
        self,
        settings: ParserSettings,
        deliver: Callable[[ParsedFile], None],
        record_death: Callable[[int, Collection[str]], None],
        *,
        backoff: Backoff,
        is_on_demand: bool = False,
    ) -> None:
        self._settings = settings
        self._deliver = deliver
        self._record_death = record_death
        self._backoff = backoff
        self._is_on_demand = is_on_demand
        self._unanswered: dict[str, None] = {}
        self._unsent: dict[str, None] = {}
        self._offered = frozenset[str]()
        """The files that were sent and not yet accepted."""
        self._begun: dict[str, None] = {}
        self._frames = 0
        """The number of frames that the parser has sent."""
        self._has_work = AutoResetEvent()
        self.pid: int | None = None
        """The process id of the parser, while there is one."""

    @property
    def unanswered(self) -> Collection[str]:
        """The files that are being parsed, or will be."""
        return self._unanswered.keys()

    def parse_nowait(self, paths: Iterable[str]) -> None:
        """Request that these files are parsed.

        If a file is requested again before its result comes, the file is parsed again, and only the
        newer result is delivered.
        """
        for path in paths:
            self._unanswered[path] = self._unsent[path] = None
        self._has_work.set()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Keep a parser running until cancelled.

        Raises:
            ConfigurationError: The first parser cannot be started. If `is_on_demand`, the start is tried again instead.
        Cancellation: The parser ends, with the forks that read files.
        """
        is_first = True
        while True:
            while self._is_on_demand and not self._unanswered:
                await self._has_work.wait()
            started = anyio.current_time()
            try:
                async with self._process() as process:
                    if is_first:
                        is_first = False
                        task_status.started()
                    is_done = await self._converse(process)
            except OSError as error:
                if is_first and not self._is_on_demand:
                    raise ConfigurationError(
                        f"the parser of DAG files cannot be started: {error.strerror}",
                        hint="this user, or its container, has reached its limit of processes or file descriptors",
                    ) from error
                # Memory, processes or file descriptors have run out. They may become free again.
                _log.error("the DAG parser cannot be started", reason=str(error))
            else:
                if is_done:
                    self._backoff.reset()
                    continue
                self._bury(process)
            await anyio.sleep(self._backoff.next_delay(anyio.current_time() - started))

    @asynccontextmanager
    async def _process(self) -> AsyncIterator[ChildProcess]:
        process = await ChildProcess.start("triggerer.dag_processing.parser")
        self.pid = process.pid
        try:
            # Ignore a closed channel here, because `_converse` notices it as well.
            with suppress(ChannelClosed):
                await process.channel.send(self._setup())
                # The answer means that the parser is ready for the next frame.
                await process.channel.receive()
            yield process
        finally:
            self.pid = None
            # The parser notices the closed channel, kills and reaps its forks, and ends.
            process.channel.shut_down()
            await process.aclose(grace_s=_CLOSE_TIMEOUT_S)

    def _bury(self, process: ChildProcess) -> None:
        """Let the next parser read the files whose newest version this parser had not begun to read.

        The parser runs users' code only in forks, but that code can kill the parser. So the next parser does not
        receive the files that were being read.
        """
        reading = [path for path in self._begun if not self._is_requested_again(path)]
        self._begun, self._offered = {}, frozenset()
        code = process.returncode
        _log.warning(
            "the DAG parser has died; another one is started",
            exit_code=code,
            files=len(self._unanswered),
            **names_if_few(reading=reading),
        )
        for path in reading:
            self._unanswered.pop(path, None)
        self._unsent = dict(self._unanswered)
        self._has_work.set()
        if reading:
            self._record_death(-signal.SIGKILL if code is None else code, reading)

    async def _converse(self, process: ChildProcess) -> bool:
        """Send files and receive answers until the parser dies or, if `is_on_demand`, until no file is left.

        Return False if the parser died, or was killed because of a malformed frame.
        """
        is_done = False
        accepted = anyio.Semaphore(1, max_value=1)
        channel = process.channel
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(process.supervise)
            tasks.start_soon(self._ask, channel, accepted)
            tasks.start_soon(self._end_if_silent, process)
            try:
                await self._listen(channel, accepted)
                is_done = True
            except MalformedFrame as error:
                _log.error("the DAG parser is ended", reason=str(error))
                process.kill()
            except ChannelClosed:
                pass
            tasks.cancel_scope.cancel()
        return is_done

    async def _end_if_silent(self, process: ChildProcess) -> None:
        """Kill a parser that does not answer in time: a file may have stopped it (SIGSTOP) or corrupted its memory."""
        patience_s = self._settings.file_timeout.total_seconds() + _SILENCE_S
        silent = 0
        while silent < _SILENT_PERIODS:
            before = self._frames
            await anyio.sleep(patience_s / _SILENT_PERIODS)
            is_busy = self._begun or self._offered
            silent = silent + 1 if is_busy and self._frames == before else 0
        _log.error("the DAG parser does not answer, and is ended", patience_s=patience_s)
        process.kill()

    def _setup(self) -> dict[str, Any]:
        return {
            "folder": str(self._settings.dags_folder),
            "allowed_modules": list(self._settings.allowed_modules),
            "pools": None if self._settings.pools is None else sorted(self._settings.pools),
            "timeout_s": self._settings.file_timeout.total_seconds(),
            "at_once": self._settings.at_once,
        }

    async def _ask(self, channel: Channel, accepted: anyio.Semaphore) -> None:
        while True:
            while not self._unsent:
                await self._has_work.wait()
            # Wait until the parser has accepted the previous frame. If two frames came together, both would be in the
            # parser's buffer, and its `select` would not report the second; see `ChildChannel.fileno`.
            await accepted.acquire()
            paths, self._unsent = list(self._unsent), {}
            self._offered = frozenset(paths)
            try:
                await channel.send({"parse": paths})
            except ChannelClosed:
                return  # `_listen` notices a closed channel too, and `run` sends all files again

    async def _listen(self, channel: Channel, accepted: anyio.Semaphore) -> None:
        while self._unanswered or not self._is_on_demand:
            answer = read_answer(await channel.receive())
            self._frames += 1
            if "accepted" in answer:
                # The parser has ended its readings of older versions of these files.
                for path in self._offered:
                    self._begun.pop(path, None)
                self._offered = frozenset()
                with suppress(ValueError):
                    accepted.release()
            elif "begun" in answer:
                self._begun[answer["begun"]] = None
            else:
                self._take(file_in(answer), answer["output"].strip())

    def _take(self, parsed: ParsedFile, output: str) -> None:
        path = parsed.path
        self._begun.pop(path, None)
        if output:
            _log.info("A DAG file wrote while it was read", file=path, output=output)
        if path in self._unanswered and not self._is_requested_again(path):
            del self._unanswered[path]
            self._deliver(parsed)

    def _is_requested_again(self, path: str) -> bool:
        """True if the parser will read the file again, so that its present result comes from an older version."""
        return path in self._unsent or path in self._offered
