"""Reads a whole folder once, without a database: for `triggerer check`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import anyio

from triggerer.dag_processing.parser_process import ParserProcess, ParserSettings
from triggerer.dag_processing.scanning import scan
from triggerer.dag_processing.unreadable import problems_of
from triggerer.domain.merging import Folder, merge
from triggerer.domain.parsed import ParsedFile, Problem
from triggerer.plugins import DagsFolder


@dataclass(frozen=True, slots=True)
class ParsedFolder:
    """What the folder's files define, and their errors and warnings."""

    files: tuple[ParsedFile, ...]
    """By path."""
    folder: Folder
    errors: tuple[Problem, ...]
    warnings: tuple[Problem, ...]


async def parse_once(
    dags_folder: Path,
    *,
    allowed_modules: tuple[str, ...] = (),
    file_timeout: timedelta = timedelta(seconds=30),
) -> ParsedFolder:
    """Read every file, with a parser that is started for it and ended afterwards.

    Whatever the files do is in `errors`, and nothing is raised for it: first what cannot be read, then by file.
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
        parser = ParserProcess(ParserSettings(root, tuple(allowed_modules), file_timeout), take)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(parser.run)
            parser.parse_nowait(paths)
            await done.wait()
            tasks.cancel_scope.cancel()
    files = tuple(parsed[path] for path in paths)
    folder = merge(files)
    errors = list(problems_of(found, root).values())
    for file in files:
        errors.extend(file.errors)
        if file.path in folder.conflicts:
            errors.append(folder.conflicts[file.path])
    return ParsedFolder(
        files=files,
        folder=folder,
        errors=tuple(errors),
        warnings=tuple(warning for file in files for warning in file.warnings),
    )
