"""Parses DAG files, even if one of them ends the parser itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Final

import anyio
from anyio.abc import TaskStatus

from triggerer.backoff import Backoff
from triggerer.dag_processing.forks import NOT_NOW
from triggerer.dag_processing.parser_process import ParserProcess, ParserSettings
from triggerer.domain.dag_files.parsed import ParsedFile, Problem
from triggerer.processes.signals import signal_name

_ATTEMPTS: Final = 3


class Parsers:
    """Reads all files with one parser. If it dies, a second parser reads the interrupted files, one at a time.

    So each death of the second parser has one file as its probable cause. But an operator or a lack of memory may also
    kill a parser. So a file counts as broken only once three parsers have died while reading it.
    """

    def __init__(self, settings: ParserSettings, deliver: Callable[[ParsedFile], None]) -> None:
        """`deliver` is called once for each requested file, with its newest version."""
        self._deliver = deliver
        self._deaths = Counter[str]()
        """For each file, how many parsers have died while reading it since its last successful read."""
        self._shared = ParserProcess(
            settings,
            self._take,
            self._record_death,
            backoff=Backoff(first=0.1, longest=5.0, healthy_after=50.0),
        )
        self._alone = ParserProcess(
            replace(settings, at_once=1),
            self._take,
            self._record_death,
            backoff=Backoff(first=0.5, longest=5.0, healthy_after=50.0),
            is_on_demand=True,
        )

    @property
    def pid(self) -> int | None:
        """The process id of the parser for all files, while there is one."""
        return self._shared.pid

    @property
    def is_idle(self) -> bool:
        """True if the result of every requested file was delivered."""
        return not self._shared.unanswered and not self._alone.unanswered

    @property
    def unanswered(self) -> Collection[str]:
        """The files that are being parsed, or will be."""
        return {*self._shared.unanswered, *self._alone.unanswered}

    def parse_nowait(self, paths: Iterable[str]) -> None:
        """Request that these files are parsed, as `ParserProcess.parse_nowait` does."""
        for path in paths:
            (self._alone if path in self._deaths else self._shared).parse_nowait([path])

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Keep a parser running until cancelled.

        Raises:
            ExceptionGroup: With a `ConfigurationError`: the first parser cannot be started.
        Cancellation: All parsers end, with the forks that read files.
        """
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._alone.run)
            await self._shared.run(task_status=task_status)

    def _take(self, parsed: ParsedFile) -> None:
        if not parsed.is_broken:
            del self._deaths[parsed.path]
        self._deliver(parsed)

    def _record_death(self, exit_code: int, reading: Collection[str]) -> None:
        for path in reading:
            # NOT_NOW means that the parser could not fork. The file is not the cause, so it is always tried again.
            self._deaths[path] += exit_code != NOT_NOW
            if exit_code == NOT_NOW or self._deaths[path] < _ATTEMPTS:
                self._alone.parse_nowait([path])
            else:
                self._deliver(_deadly(path, exit_code))


def _deadly(path: str, exit_code: int) -> ParsedFile:
    how = signal_name(-exit_code) if exit_code < 0 else f"exit code {exit_code}"
    reason = (
        f"importing it ended the process that reads the DAG files, in each of {_ATTEMPTS} tries ({how});"
        " it is tried again when a file of the folder changes"
    )
    return ParsedFile(
        path=path, parse_seconds=0.0, errors=(Problem(path, None, reason),), is_broken=True
    )
