"""The service or the parser is killed while a DAG file is imported."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
from structlog.testing import capture_logs

from tests.isolation.conftest import until
from tests.services.process import lives
from triggerer.child_process import ChildProcess
from triggerer.dag_processing import parse_once
from triggerer.dag_processing.parser_process import ParserProcess, ParserSettings
from triggerer.domain.parsed import ParsedFile
from triggerer.errors import ConfigurationError

ROOT = Path(__file__).parents[3]

# `signal.alarm` as users' code may use it: it takes away an alarm that was set before.
HANGS = """\
import os, signal, subprocess, time
from pathlib import Path
signal.alarm(0)
child = subprocess.Popen(["sleep", "300"])
note = Path(__file__).with_name("children")
if not note.exists():
    note.with_suffix(".new").write_text(f"{os.getpid()} {child.pid}")
    note.with_suffix(".new").rename(note)
    time.sleep(60)
"""

SERVICE = """
import sys, anyio
from pathlib import Path
from triggerer.dag_processing import parse_once
anyio.run(parse_once, Path(sys.argv[1]))
"""


@pytest.fixture
def note(tmp_path: Path) -> Path:
    """Where the DAG file writes the process that imports it, and one that it has started."""
    (tmp_path / "hangs.py").write_text(HANGS)
    return tmp_path / "children"


async def _importing(note: Path) -> list[psutil.Process]:
    await until(note.exists)
    return [psutil.Process(int(pid)) for pid in note.read_text().split()]


async def _all_end(processes: list[psutil.Process]) -> None:
    try:
        await until(lambda: not any(lives(process.pid) for process in processes), timeout=30)
    finally:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()


@pytest.mark.parametrize(
    "before", [lambda _: None, lambda parser: parser.suspend()], ids=["idle", "stopped"]
)
async def test_all_of_it_dies_with_a_killed_service(
    note: Path, before: Callable[[psutil.Process], None]
) -> None:
    with subprocess.Popen([sys.executable, "-c", SERVICE, str(note.parent)], cwd=ROOT) as service:
        try:
            await _importing(note)
            family = psutil.Process(service.pid).children(recursive=True)
            parser, *_ = family
            before(parser)
        finally:
            service.kill()
    assert len(family) == 3
    await _all_end(family)


async def test_what_a_killed_parser_was_importing_dies_with_it_and_is_asked_for_again(
    note: Path,
) -> None:
    parsed: list[ParsedFile] = []
    parser = ParserProcess(ParserSettings(note.parent), parsed.append)
    async with anyio.create_task_group() as tasks:
        await tasks.start(parser.run)
        parser.parse_nowait(["hangs.py"])
        importing = await _importing(note)
        assert parser.pid is not None
        os.kill(parser.pid, signal.SIGKILL)
        await _all_end(importing)
        await until(lambda: parsed, timeout=10)
        tasks.cancel_scope.cancel()
    assert [file.path for file in parsed] == ["hangs.py"]


async def test_a_parser_that_cannot_be_started_again_yet_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fine.py").write_text("x = 1\n")
    parsed: list[ParsedFile] = []
    parser = ParserProcess(ParserSettings(tmp_path), parsed.append)
    start = ChildProcess.start
    refusals = 0

    async def refuse_twice(*arguments: Any, **options: Any) -> ChildProcess:
        nonlocal refusals
        if refusals < 2:
            refusals += 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return await start(*arguments, **options)

    async with anyio.create_task_group() as tasks:
        await tasks.start(parser.run)
        assert parser.pid is not None
        # As where the service has used up its file descriptors.
        monkeypatch.setattr(ChildProcess, "start", refuse_twice)
        with capture_logs() as logs:
            os.kill(parser.pid, signal.SIGKILL)
            parser.parse_nowait(["fine.py"])
            await until(lambda: parsed, timeout=10)
        tasks.cancel_scope.cancel()
    assert refusals == 2
    assert [file.path for file in parsed] == ["fine.py"]
    reasons = [log["reason"] for log in logs if log["event"] == "the DAG parser cannot be started"]
    assert reasons == ["[Errno 24] Too many open files"] * 2


async def test_a_start_for_which_no_process_can_be_had_is_a_plain_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fine.py").write_text("x = 1\n")

    async def refuse(*_: Any, **__: Any) -> ChildProcess:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(ChildProcess, "start", refuse)
    with pytest.raises(ExceptionGroup) as raised:
        await parse_once(tmp_path)
    (error,) = raised.value.exceptions
    assert isinstance(error, ConfigurationError)
    assert "as many processes" in str(error.hint)
