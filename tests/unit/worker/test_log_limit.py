"""A run's log is limited on the disk, and readers see its beginning and its end."""

from __future__ import annotations

import errno
import io
import itertools
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.cli.views import run
from triggerer.cli.runs.following import _GrowingLog
from triggerer.worker.logs import limit as limit_module
from triggerer.worker.logs.limit import LogLimit, cut_line
from triggerer.worker.logs.reading import parts_of
from triggerer.worker.logs.writing import open_log

MOST = 65_536
LINE = b"line %09d\n"
SIZE = len(LINE % 0)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """The path of a log, and its descriptor."""
    path = tmp_path / "run.log"
    descriptor = open_log(path)
    yield path, descriptor
    os.close(descriptor)


def write(descriptor: int, first: int, count: int) -> None:
    os.write(descriptor, b"".join(LINE % number for number in range(first, first + count)))


def shown(path: Path) -> bytes:
    with path.open("rb", buffering=0) as file:
        return b"".join(part for _, part in parts_of(file))


def numbers_in(text: bytes) -> list[int]:
    return [int(number) for number in re.findall(rb"^line (\d{9})$", text, re.MULTILINE)]


def test_a_log_that_grows_for_ever_keeps_its_beginning_and_its_end(log: tuple[Path, int]) -> None:
    path, descriptor = log
    limit = LogLimit(descriptor, MOST)
    for batch in range(200):
        write(descriptor, batch * 1_000, 1_000)
        limit.enforce()
        assert os.fstat(descriptor).st_blocks * 512 <= MOST + 4_096
    text = shown(path)
    numbers = numbers_in(text)
    assert numbers[0] == 0
    assert numbers[-1] == 199_999
    assert len(text) <= MOST
    assert b"\0" not in text
    # One gap, and the line in it names the bytes that are missing.
    (gap,) = [(a, b) for a, b in itertools.pairwise(numbers) if b != a + 1]
    said = len(cut_line(0, MOST))
    assert bytes_cut(text) == 200_000 * SIZE - (len(text) - said)
    assert gap[0] < gap[1]


def test_a_short_log_is_left_alone(log: tuple[Path, int]) -> None:
    path, descriptor = log
    write(descriptor, 0, MOST // SIZE)
    LogLimit(descriptor, MOST).enforce()
    assert numbers_in(shown(path)) == list(range(MOST // SIZE))


def test_a_further_attempt_continues_with_the_same_limit(log: tuple[Path, int]) -> None:
    path, descriptor = log
    for attempt in range(3):
        limit = LogLimit(descriptor, MOST)
        write(descriptor, attempt * 10_000, 10_000)
        limit.enforce()
    text = shown(path)
    assert text.count(b"bytes were cut here") == 1
    assert len(text) <= MOST
    assert (numbers_in(text)[0], numbers_in(text)[-1]) == (0, 29_999)


def test_a_follower_prints_each_line_once_and_says_what_it_missed(
    log: tuple[Path, int], capsys: pytest.CaptureFixture[str]
) -> None:
    path, descriptor = log
    limit = LogLimit(descriptor, MOST)
    out = io.BytesIO()
    follower = _GrowingLog(out)
    row = replace(run(None), log_path=str(path))
    for batch in range(20):
        write(descriptor, batch * 1_000, 1_000)
        follower.copy(row)
        limit.enforce()
    # The follower was in time: it has all lines, and nothing else.
    assert numbers_in(out.getvalue()) == list(range(20_000))
    assert capsys.readouterr().err == ""
    for batch in range(20, 40):
        write(descriptor, batch * 1_000, 1_000)
        limit.enforce()
    follower.copy(row)
    numbers = numbers_in(out.getvalue())
    assert len(numbers) == len(set(numbers))
    assert numbers[-1] == 39_999
    assert re.search(r"[\d,]+ bytes of the log were cut here", capsys.readouterr().err)


def bytes_cut(text: bytes) -> int:
    """Return the number of bytes that the log's only line about a cut names."""
    (cut,) = re.findall(rb"^triggerer: +([\d,]+) bytes were cut here", text, re.MULTILINE)
    return int(cut.replace(b",", b""))


def test_a_file_system_with_large_blocks_shows_no_zeros_and_the_next_attempt_finds_the_hole(
    log: tuple[Path, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    block, most = 65_536, 4 * 1024 * 1024
    free = limit_module.free

    def free_whole_blocks(descriptor: int, first: int, last: int) -> None:
        # Such a file system frees only whole blocks, and overwrites the rest of the range with zeros.
        begin, end = -(-first // block) * block, last // block * block
        free(descriptor, begin, end)
        with path.open("r+b") as file:
            for position, size in ((first, begin - first), (end, last - end)):
                file.seek(position)
                file.write(b"\0" * size)

    monkeypatch.setattr(limit_module, "free", free_whole_blocks)
    path, descriptor = log
    for attempt in range(3):
        limit = LogLimit(descriptor, most)
        write(descriptor, attempt * 500_000, 500_000)
        limit.enforce()
    text = shown(path)
    assert b"\0" not in text
    assert len(text) <= most
    assert numbers_in(text)[-1] == 1_499_999
    assert bytes_cut(text) == 1_500_000 * SIZE - (len(text) - len(cut_line(0, most)))


@pytest.fixture
def no_holes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file system cannot free the middle of a file."""

    def refuse(*_: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(limit_module, "free", refuse)


@pytest.mark.usefixtures("no_holes")
def test_where_no_middle_can_be_freed_a_further_attempt_adds_to_the_bytes_that_were_cut(
    log: tuple[Path, int],
) -> None:
    path, descriptor = log
    for attempt in range(3):
        limit = LogLimit(descriptor, MOST)
        write(descriptor, attempt * 10_000, 10_000)
        limit.enforce()
    text = shown(path)
    assert bytes_cut(text) == 30_000 * SIZE - (len(text) - len(cut_line(0, MOST)))


@pytest.mark.usefixtures("no_holes")
def test_where_no_middle_can_be_freed_the_beginning_and_the_newest_lines_stay(
    log: tuple[Path, int],
) -> None:
    path, descriptor = log
    limit = LogLimit(descriptor, MOST)
    for batch in range(50):
        write(descriptor, batch * 1_000, 1_000)
        limit.enforce()
    write(descriptor, 50_000, 1)
    assert path.stat().st_size <= MOST
    numbers = numbers_in(shown(path))
    assert (numbers[0], numbers[-1]) == (0, 50_000)
