"""The texts of failures, and the places of logs."""

import logging
import os
import threading
import time
from pathlib import Path

import anyio
import pytest

from triggerer.domain.run_logs import log_path
from triggerer.executor import log_files
from triggerer.executor.log_files import LogFiles
from triggerer.worker.failures import explain, storable
from triggerer.worker.logs import writing
from triggerer.worker.logs.reading import tail
from triggerer.worker.logs.writing import append_line


def test_a_log_lies_under_its_dag_and_run_with_readable_names() -> None:
    path = log_path("/h", "daily.load", "manual__2026-01-01T00:00:00+00:00")
    assert path == "/h/logs/daily.load/manual__2026-01-01T00:00:00+00:00.log"


@pytest.mark.parametrize("run_id", ["../../etc/passwd", "a/b", ".", "..", "", "x" * 250, "ü\n"])
def test_a_run_id_cannot_leave_the_folder_or_exceed_a_file_name(run_id: str) -> None:
    path = Path(log_path("/h", "d", run_id))
    assert path.parent == Path("/h/logs/d")
    assert path.resolve() == path
    assert len(path.name.encode()) <= 255


def test_two_run_ids_never_share_a_log() -> None:
    names = ["a/b", "a_b", "a\\b", "x" * 249, "x" * 250, ".a", "a"]
    assert len({log_path("/h", "d", name) for name in names}) == len(names)


def failure_of(source: str, file: Path) -> KeyError:
    """Return the error that the source's `f` raises, as if the source were read from the file."""
    names: dict[str, object] = {}
    exec(compile(source, str(file), "exec"), names)
    with pytest.raises((KeyError, RecursionError, SyntaxError)) as caught:
        names["f"]()  # type: ignore[operator]
    return caught.value


def test_the_users_lines_are_known_by_the_link_that_leads_to_the_dags_folder(
    tmp_path: Path,
) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "current").symlink_to(tmp_path / "first")
    file = tmp_path / "current" / "user.py"
    told = explain(failure_of("def f():\n    raise KeyError('k')\n", file), tmp_path / "current")
    assert f'File "{file}"' in told


def test_an_error_shows_the_users_lines_only_with_what_caused_it(tmp_path: Path) -> None:
    source = "def f():\n    try:\n        1 / 0\n    except Exception as e:\n        raise KeyError('k') from e\n"
    file = tmp_path / "user.py"
    file.write_text(source)
    told = explain(failure_of(source, file), tmp_path)
    assert "ZeroDivisionError" in told
    assert told.count(f'File "{file}"') == 2
    assert __file__ not in told


def test_an_error_that_many_others_led_to_is_shown(tmp_path: Path) -> None:
    """A function that calls itself in its error handler raises a chain of many errors once the stack is full."""
    source = "def f():\n    try:\n        1 / 0\n    except ZeroDivisionError:\n        f()\n"
    file = tmp_path / "user.py"
    told = explain(failure_of(source, file), tmp_path)
    assert "RecursionError: maximum recursion depth exceeded" in told
    assert f'File "{file}", line 3' in told


def test_an_error_that_cannot_be_shown_is_named(tmp_path: Path) -> None:
    # Do not raise this error, because pytest cannot show it either.
    error = SyntaxError("s")
    error.text, error.lineno = 5, "x"  # type: ignore[assignment]
    assert explain(error, tmp_path) == "SyntaxError (it cannot be shown: AttributeError)"
    exc_info = (SyntaxError, error, None)
    record = logging.LogRecord("one", logging.ERROR, "f.py", 1, "failed", (), exc_info)
    line = writing.FORMATTER.format(record)
    assert line.endswith("failed\nSyntaxError (its traceback cannot be shown: AttributeError)")


def test_a_line_of_a_run_says_its_time_in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        record = logging.LogRecord("one", logging.INFO, "f.py", 1, "begun", (), None)
        record.created, record.msecs = 1_790_000_000.0, 0.0
        assert writing.FORMATTER.format(record) == "2026-09-21 14:13:20.000Z INFO one: begun"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_an_error_text_is_storable_whatever_it_holds() -> None:
    text = storable("nul \x00 half \ud800 " + "x" * 10_000)
    assert "\x00" not in text
    assert len(text.encode()) < 6_200
    assert "see the log" in text


def test_the_tail_of_a_log_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert tail(tmp_path / "no") == ""
    (tmp_path / "yes").write_bytes(b"a" * 10 + b"\xff!")
    assert tail(tmp_path / "yes", 3) == "a\ufffd!"


async def test_the_end_of_a_log_is_a_line_of_its_own_in_a_file_for_its_user_alone(
    tmp_path: Path,
) -> None:
    path = Path(log_path(str(tmp_path / "home"), "d", "r"))
    await LogFiles().end(str(path), "r", "cancelled")
    (line,) = path.read_text().splitlines()
    assert line.endswith(" INFO triggerer.run: run r: cancelled")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    with path.open("a") as log:
        log.write("tick")
    await LogFiles().end(str(path), "r", "failed: \ud800")
    first, tick, last = path.read_text().splitlines()
    assert (first, tick) == (line, "tick")
    assert last.endswith(" INFO triggerer.run: run r: failed: \\ud800")


async def test_a_log_that_cannot_be_written_does_not_keep_a_run_from_ending(tmp_path: Path) -> None:
    (tmp_path / "logs").touch()
    await LogFiles().end(log_path(str(tmp_path), "d", "r"), "r", "cancelled")
    assert (tmp_path / "logs").read_text() == ""


async def test_a_log_that_ends_while_another_is_written_gets_its_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def append_slowly(path: str, line: str) -> None:
        begun.set()
        go_on.wait(60)
        append_line(path, line)

    monkeypatch.setattr(log_files, "append_line", append_slowly)
    files, paths = LogFiles(), [tmp_path / "first.log", tmp_path / "second.log"]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(files.end, str(paths[0]), "r", "cancelled")
        assert await anyio.to_thread.run_sync(begun.wait, 60)
        tasks.start_soon(files.end, str(paths[1]), "r", "cancelled")
        await anyio.wait_all_tasks_blocked()
        go_on.set()
    assert [path.exists() for path in paths] == [True, True]


async def test_a_log_whose_file_system_hangs_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe without a reader stands for a file on a server that does not answer: opening either for writing hangs."""
    monkeypatch.setattr(log_files, "_PATIENCE_S", 0.2)
    path = tmp_path / "r.log"
    os.mkfifo(path)
    files = LogFiles()
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await anyio.sleep(0.01)
            turns += 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(count_turns)
        await files.end(str(path), "r", "cancelled")
        assert await files.tail(str(path)) == ""
        tasks.cancel_scope.cancel()
    assert turns > 5
    # Open both ends of the pipe, as if the file server answered again. This ends the wait of the abandoned thread.
    ends = os.open(path, os.O_RDWR)
    monkeypatch.setattr(log_files, "_PATIENCE_S", 60)
    path.rename(tmp_path / "pipe")
    with anyio.fail_after(60):
        # The abandoned thread may write its line into the new file first, so write until our line is the last.
        while not path.exists() or not path.read_text().endswith("run r: failed\n"):
            await anyio.sleep(0.01)
            await files.end(str(path), "r", "failed")
    os.close(ends)


async def test_a_log_for_which_no_thread_was_free_in_time_keeps_none_from_being_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_files, "_PATIENCE_S", 0.05)
    path = tmp_path / "r.log"
    files = LogFiles()
    limiter = anyio.to_thread.current_default_thread_limiter()
    taken = [object() for _ in range(int(limiter.total_tokens))]
    for taker in taken:
        limiter.acquire_on_behalf_of_nowait(taker)
    await files.end(str(path), "r", "cancelled")
    for taker in taken:
        limiter.release_on_behalf_of(taker)
    assert not path.exists()
    monkeypatch.setattr(log_files, "_PATIENCE_S", 60)
    await files.end(str(path), "r", "failed")
    assert path.read_text().endswith("run r: failed\n")
