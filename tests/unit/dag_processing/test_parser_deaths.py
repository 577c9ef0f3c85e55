"""The service or the parser is killed while a DAG file is imported."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import anyio
import psutil
import pytest
from anyio import to_thread
from structlog.testing import capture_logs

from tests.isolation.conftest import until
from tests.services.process import lives
from triggerer.backoff import Backoff
from triggerer.dag_processing import parse_once, parser_process
from triggerer.dag_processing.parser_process import ParserProcess, ParserSettings
from triggerer.dag_processing.parsers import Parsers
from triggerer.domain.dag_files.parsed import ParsedFile
from triggerer.errors import ConfigurationError
from triggerer.processes.child_process import ChildProcess
from triggerer.processes.ipc import Channel, ChildChannel

ROOT = Path(__file__).parents[3]

# Users' code may call `signal.alarm`, which removes an alarm that was set before.
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
    """The path where `hangs.py` writes two process ids: of the process that imports `hangs.py`, and of its child."""
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


async def test_imports_of_a_killed_parser_die_with_it_and_are_requested_again(
    note: Path,
) -> None:
    parsed: list[ParsedFile] = []
    parser = Parsers(ParserSettings(note.parent), parsed.append)
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
    parser = Parsers(ParserSettings(tmp_path), parsed.append)
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
        # As if the service had used up its file descriptors.
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
    plain = pytest.RaisesExc(
        ConfigurationError, check=lambda error: "its limit of processes" in str(error.hint)
    )
    with pytest.RaisesGroup(plain, flatten_subgroups=True):
        await parse_once(tmp_path)


# A DAG file that kills its parser with a signal. A real file may crash the parser through a faulty C library, or take
# so much memory that the kernel kills the parser.
KILLS_ITS_PARENT = """\
import os, signal
from pathlib import Path
with (Path(__file__).parent / "tries").open("a") as tries:
    tries.write("x")
os.kill(os.getppid(), signal.{signal})
"""


@pytest.fixture
def no_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Backoff, "next_delay", lambda *_: 0.0)


@pytest.mark.usefixtures("no_delays")
async def test_a_file_that_ends_its_parser_is_tried_some_times_and_holds_up_no_other(
    tmp_path: Path,
) -> None:
    (tmp_path / "bad.py").write_text(KILLS_ITS_PARENT.format(signal="SIGKILL"))
    for name in "abcdefg":
        (tmp_path / f"{name}.py").write_text(f"from triggerer import DAG\nd = DAG('{name}')\n")
    with anyio.fail_after(30):
        parsed = await parse_once(tmp_path)
    assert sorted(parsed.folder.dags) == [*"abcdefg"]
    (error,) = parsed.errors
    assert (error.file, error.line) == ("bad.py", None)
    assert (
        "ended the process that reads the DAG files, in each of 3 tries (SIGKILL)" in error.reason
    )
    assert (tmp_path / "tries").read_text() == "xxx"


@pytest.mark.usefixtures("no_delays")
async def test_a_file_that_ended_parsers_is_read_alone_until_it_is_mended(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text(KILLS_ITS_PARENT.format(signal="SIGTERM"))
    parsed: list[ParsedFile] = []
    parsers = Parsers(ParserSettings(tmp_path), parsed.append)

    async def read() -> ParsedFile:
        parsers.parse_nowait(["bad.py"])
        await until(lambda: parsed, timeout=20)
        return parsed.pop()

    async with anyio.create_task_group() as tasks:
        await tasks.start(parsers.run)
        assert "SIGTERM" in (await read()).errors[0].reason
        others = parsers.pid
        tries = len((tmp_path / "tries").read_text())
        # The unchanged file has ended its parser before. So it gets one try only.
        assert (await read()).is_broken
        assert len((tmp_path / "tries").read_text()) == tries + 1
        bad.write_text("x = 1\n")
        assert not (await read()).is_broken
        assert parsers.pid == others
        assert parsers.is_idle
        tasks.cancel_scope.cancel()


@pytest.mark.usefixtures("no_delays")
async def test_a_parser_that_a_file_has_stopped_is_ended_and_the_others_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parser_process, "_SILENCE_S", 0.5)
    (tmp_path / "a.py").write_text("import os\nos.kill(os.getppid(), 19)\n")
    (tmp_path / "z.py").write_text("from triggerer import DAG\nd = DAG('z')\n")
    with anyio.fail_after(30):
        parsed = await parse_once(tmp_path, file_timeout=timedelta(seconds=0.5))
    assert [*parsed.folder.dags] == ["z"]
    assert [error.file for error in parsed.errors] == ["a.py"]


async def test_a_signal_without_a_name_ends_its_file_only(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("import os\nos.kill(os.getpid(), 40)\n")
    with anyio.fail_after(30):
        parsed = await parse_once(tmp_path)
    assert [error.reason for error in parsed.errors] == [
        "importing it killed its process: signal 40"
    ]


DETACHES = """\
import os, signal, subprocess, sys, time
from pathlib import Path

def note(name):
    path = Path(__file__).with_name(name)
    path.with_suffix(".new").write_text(str(os.getpid()))
    path.with_suffix(".new").rename(path)

def detached(name, then=lambda: None):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.setsid()
            note(name)
            then()
            time.sleep(300)
        os._exit(0)
    os.wait()

detached("daemon", lambda: detached("daemon_of_it"))
subprocess.Popen(["sleep", "300"], start_new_session=True)
while not Path(__file__).with_name("daemon_of_it").exists():
    time.sleep(0.01)
{end}
"""


@pytest.mark.parametrize("end", ["", "os.kill(os.getpid(), 9)", "time.sleep(300)"])
async def test_processes_that_a_file_detached_end_with_its_reading(
    tmp_path: Path, end: str
) -> None:
    (tmp_path / "a.py").write_text(DETACHES.format(end=end))
    parsed = []
    parsers = Parsers(ParserSettings(tmp_path, file_timeout=timedelta(seconds=1)), parsed.append)
    async with anyio.create_task_group() as tasks:
        await tasks.start(parsers.run)
        parsers.parse_nowait(["a.py"])
        await until(lambda: parsed, timeout=20)
        assert parsers.pid is not None
        parser = psutil.Process(parsers.pid)
        await until(lambda: not parser.children(recursive=True))
        tasks.cancel_scope.cancel()
    for name in ("daemon", "daemon_of_it"):
        assert not lives(int((tmp_path / name).read_text()))


async def test_a_parser_that_is_to_end_leaves_nothing_that_a_file_has_detached(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.py").write_text(DETACHES.format(end="note('done')\ntime.sleep(300)"))
    parsers = Parsers(ParserSettings(tmp_path), lambda _: None)
    async with anyio.create_task_group() as tasks:
        await tasks.start(parsers.run)
        parsers.parse_nowait(["a.py"])
        await until((tmp_path / "done").exists, timeout=20)
        assert parsers.pid is not None
        parser = psutil.Process(parsers.pid)
        # Until it has ended, the process that detaches another one is a fifth.
        await until(lambda: len(parser.children(recursive=True)) == 4)
        left = parser.children(recursive=True)
        tasks.cancel_scope.cancel()
    assert len(left) == 4
    await _all_end(left)


@pytest.mark.usefixtures("no_delays")
async def test_a_newer_version_that_the_parser_has_not_begun_is_not_the_cause_of_its_death(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parser has accepted the second request for a.py, and so has ended its first reading of this file."""
    (first, theirs), (second, next_theirs) = await Channel.open(), await Channel.open()
    children = [
        Mock(channel=channel, pid=1, returncode=-9, supervise=AsyncMock(), aclose=AsyncMock())
        for channel in (first, second)
    ]
    monkeypatch.setattr(ChildProcess, "start", AsyncMock(side_effect=children))
    deaths: list[str] = []
    process = ParserProcess(
        ParserSettings(tmp_path),
        lambda _: None,
        lambda _, reading: deaths.extend(reading),
        backoff=Backoff(first=0.1, longest=0.1),
    )

    async def asked(parser: ChildChannel) -> Any:
        return await to_thread.run_sync(parser.receive)

    with ChildChannel(next_theirs) as next_parser:
        next_parser.send({"accepted": 0})
        async with anyio.create_task_group() as tasks:
            with ChildChannel(theirs) as parser:
                parser.send({"accepted": 0})
                await tasks.start(process.run)
                await asked(parser)
                for request in (["a.py", "b.py"], ["a.py"]):
                    process.parse_nowait(request)
                    assert await asked(parser) == {"parse": request}
                    parser.send({"accepted": len(request)})
                    if "b.py" in request:
                        parser.send({"begun": "a.py"})
                parser.send({"begun": "b.py"})
                await anyio.wait_all_tasks_blocked()
            process.parse_nowait(["c.py"])
            await asked(next_parser)
            requested = (await asked(next_parser))["parse"]
            tasks.cancel_scope.cancel()
    for channel in (first, second):
        await channel.aclose()
    assert deaths == ["b.py"]
    assert requested == ["a.py", "c.py"]


async def test_the_result_of_an_older_version_does_not_count_for_a_newer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parser reads the file before it receives the request to read the newer version."""
    ours, theirs = await Channel.open()
    child = Mock(channel=ours, pid=1, returncode=0, supervise=AsyncMock(), aclose=AsyncMock())
    monkeypatch.setattr(ChildProcess, "start", AsyncMock(return_value=child))
    parsed: list[ParsedFile] = []
    parsers = Parsers(ParserSettings(tmp_path), parsed.append)
    with ChildChannel(theirs) as parser:

        async def asked() -> Any:
            return await to_thread.run_sync(parser.receive)

        def answer(seconds: float) -> None:
            file = ParsedFile("a.py", seconds).to_json()
            parser.send({"path": "a.py", "file": file, "output": ""})

        parser.send({"accepted": 0})
        async with anyio.create_task_group() as tasks:
            await tasks.start(parsers.run)
            await asked()
            for version in (1, 2):
                parsers.parse_nowait(["a.py"])
                assert await asked() == {"parse": ["a.py"]}
                if version == 1:
                    parser.send({"accepted": 1})
                    await anyio.wait_all_tasks_blocked()
            answer(1)
            parser.send({"accepted": 1})
            answer(2)
            await until(lambda: parsed)
            tasks.cancel_scope.cancel()
    await ours.aclose()
    assert [file.parse_seconds for file in parsed] == [2]


STOPS_ITS_PARENT = """\
import os, signal
from pathlib import Path
with (Path(__file__).parent / "tries").open("a") as tries:
    tries.write("x")
os.kill(os.getppid(), signal.SIGSTOP)
"""


@pytest.mark.usefixtures("no_delays")
async def test_a_file_that_changes_while_it_ends_its_last_parser_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parser_process, "_SILENCE_S", 1.0)
    bad, tries = tmp_path / "bad.py", tmp_path / "tries"
    bad.write_text(STOPS_ITS_PARENT)
    parsed: list[ParsedFile] = []
    settings = ParserSettings(tmp_path, file_timeout=timedelta(seconds=0.5))
    parsers = Parsers(settings, parsed.append)
    async with anyio.create_task_group() as tasks:
        await tasks.start(parsers.run)
        parsers.parse_nowait(["bad.py"])
        await until(lambda: tries.exists() and tries.read_text() == "xxx", timeout=20)
        bad.write_text("x = 1\n")
        parsers.parse_nowait(["bad.py"])
        await until(lambda: parsed, timeout=20)
        assert parsers.is_idle
        tasks.cancel_scope.cancel()
    assert [file.is_broken for file in parsed] == [False]


# Python imports this module when a parser starts. While the file `full` exists, one fork fails.
FULL_MACHINE = """\
import errno, os
from pathlib import Path
full, fork = Path({folder!r}, "full"), os.fork
def fork_once_there_is_room():
    if full.exists():
        full.rename(full.with_name("was_full"))
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
    return fork()
os.fork = fork_once_there_is_room
"""


@pytest.mark.usefixtures("no_delays")
async def test_a_corrected_file_whose_parser_cannot_fork_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dags, site = tmp_path / "dags", tmp_path / "site"
    dags.mkdir()
    site.mkdir()
    (site / "sitecustomize.py").write_text(FULL_MACHINE.format(folder=str(tmp_path)))
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)
    bad = dags / "bad.py"
    bad.write_text(KILLS_ITS_PARENT.format(signal="SIGKILL"))
    parsed: list[ParsedFile] = []
    parsers = Parsers(ParserSettings(dags), parsed.append)
    async with anyio.create_task_group() as tasks:
        await tasks.start(parsers.run)
        parsers.parse_nowait(["bad.py"])
        await until(lambda: parsed, timeout=20)
        assert parsed.pop().is_broken
        bad.write_text("x = 1\n")
        (tmp_path / "full").touch()
        parsers.parse_nowait(["bad.py"])
        await until(lambda: parsed, timeout=20)
        tasks.cancel_scope.cancel()
    assert (tmp_path / "was_full").exists()
    assert [file.is_broken for file in parsed] == [False]
