"""Reads a whole folder once, without a database, for commands such as `triggerer check` and `triggerer plan`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

import anyio

from triggerer.dag_processing.ignored import problems_of_ignored
from triggerer.dag_processing.parser_process import ParserSettings
from triggerer.dag_processing.parsers import Parsers
from triggerer.dag_processing.scanning import Scanned, scan
from triggerer.dag_processing.unreadable import problems_of
from triggerer.domain.dag_files.merging import NO_INCUMBENTS, Folder, Incumbents, merge
from triggerer.domain.dag_files.parsed import ParsedFile, Problem
from triggerer.plugins import DagsFolder


@dataclass(frozen=True, slots=True)
class ParsedFolder:
    """The definitions of the folder's files, with errors and warnings."""

    files: tuple[ParsedFile, ...]
    """Sorted by path."""
    folder: Folder
    errors: tuple[Problem, ...]
    warnings: tuple[Problem, ...]
    scanned: Scanned = field(default_factory=lambda: Scanned({}))
    unreadable: tuple[Problem, ...] = ()
    """Those of `errors` that are about files and folders that cannot be read."""

    def merged_with(self, incumbents: Incumbents) -> ParsedFolder:
        """Return the result that the DAG processor would get if the store already had the definitions `incumbents`.

        A file that is broken or cannot be read keeps its stored definitions. If two files contradict each other, the
        file whose definition is stored wins.
        """
        hidden = {path for path in incumbents.files if self.scanned.hides(path)}
        broken = {file.path for file in self.files if file.is_broken}
        folder = merge(self.files, incumbents, unusable=frozenset(hidden | broken))
        errors = (*self.unreadable, *_errors_of(self.files, folder))
        return replace(self, folder=folder, errors=errors)

    def is_unusable(self, path: str) -> bool:
        """True if a file cannot be used now, so that the store keeps the file's previous definitions."""
        is_broken = any(file.path == path and file.is_broken for file in self.files)
        return is_broken or path in self.folder.conflicts or self.scanned.hides(path)


def _errors_of(files: Iterable[ParsedFile], folder: Folder) -> tuple[Problem, ...]:
    errors: list[Problem] = []
    for file in files:
        errors.extend(file.errors)
        if file.path in folder.conflicts:
            errors.append(folder.conflicts[file.path])
    return tuple(errors)


async def parse_once(
    dags_folder: Path,
    *,
    allowed_modules: tuple[str, ...] = (),
    file_timeout: timedelta = timedelta(seconds=30),
    pools: Collection[str] | None = None,
) -> ParsedFolder:
    """Start a parser, and read every file of the folder once. Errors of files are in the result, and are not raised.

    Args:
        pools: The names in `[pools]`. A task that uses another pool is an error. None: a task may use any pool.
    """
    root = DagsFolder(dags_folder).root
    found = scan(root)
    paths = list(found.files)
    parsed: dict[str, ParsedFile] = {}
    done = anyio.Event()

    def take(file: ParsedFile) -> None:
        parsed[file.path] = file
        if len(parsed) == len(paths):
            done.set()

    if paths:
        known = None if pools is None else frozenset(pools)
        settings = ParserSettings(root, tuple(allowed_modules), file_timeout, pools=known)
        parser = Parsers(settings, take)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(parser.run)
            parser.parse_nowait(paths)
            await done.wait()
            tasks.cancel_scope.cancel()
    files = tuple(parsed[path] for path in paths)
    folder = merge(files, NO_INCUMBENTS)
    unreadable = tuple(problems_of(found, root).values())
    return ParsedFolder(
        files=files,
        folder=folder,
        errors=(*unreadable, *_errors_of(files, folder)),
        warnings=(
            *(warning for file in files for warning in file.warnings),
            *problems_of_ignored(found.ignored),
        ),
        scanned=found,
        unreadable=unreadable,
    )
