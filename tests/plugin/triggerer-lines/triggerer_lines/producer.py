"""Reads the lines of a directory's `*.lines` files; the directory also holds how far they were consumed."""

import json
import logging
import os
from collections.abc import AsyncIterator, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

import anyio
from anyio import to_thread

from triggerer.abc import AdvanceItem, SharedStreamProducer

_log = logging.getLogger(__name__)

_BATCH = 500
_POSITIONS = ".positions.json"
_DEAD_LETTERS = "dead-letters.jsonl"


@dataclass(frozen=True, slots=True)
class Line:
    """One line: the event, and also the broker payload. `raw` has no newline at its end."""

    file: str
    inode: int
    begin: int
    end: int
    raw: bytes
    delivery: int


@dataclass(slots=True)
class _File:
    inode: int
    committed: int
    read: int
    delivery: int = 0
    failures: int = 0


class LinesSharedStreamProducer(SharedStreamProducer):
    """A lane is a file. A failed line is read again at the next look, and the later lines of its file wait for it."""

    def __init__(
        self, directory: Path, *, poll_s: float = 0.5, max_deliveries: int | None = None
    ) -> None:
        self._directory = directory
        self._max_deliveries = max_deliveries
        self._poll_s = poll_s
        self._files: dict[str, _File] = {}
        self._paused: anyio.Event | None = None

    async def open_stream(self) -> AsyncIterator[tuple[Line, Line]]:
        positions = await to_thread.run_sync(load_positions, self._directory)
        self._files = {
            name: _File(inode, end, end, failures=failures)
            for name, (inode, end, failures) in positions.items()
        }
        while True:
            # Give the thread copies: while it reads, `advance` may set a position back. The lines that the thread has
            # read then have an old `delivery`, and are ignored.
            files = {name: replace(file) for name, file in self._files.items()}
            lines = await to_thread.run_sync(read_lines, self._directory, files)
            for line in lines:
                if self._paused is not None:
                    await self._paused.wait()
                file = self._file_of(line)
                if line.delivery == file.delivery:
                    file.read = line.end
                    yield line, line
            if not lines:
                await anyio.sleep(self._poll_s)

    def _file_of(self, line: Line) -> _File:
        file = self._files.get(line.file)
        if file is None or file.inode != line.inode:
            # A file with a known name, but another inode, is a new file, and is read from its beginning.
            file = self._files[line.file] = _File(line.inode, 0, 0)
        return file

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        for line, outcome in batch:
            file = self._files[line.file]
            if (line.inode, line.delivery) != (file.inode, file.delivery):
                continue
            if outcome.failed or not (outcome.acked or outcome.rejected):
                # If no watcher failed at this very line, its failure does not count.
                file.failures += 1 if outcome.blames_event else 0
                if self._max_deliveries is None or file.failures < self._max_deliveries:
                    file.read = file.committed
                    file.delivery += 1
                    break
                await self.dead_letter(line, f"failed {file.failures} times")
            elif outcome.rejected and not outcome.is_set_aside:
                await self.dead_letter(line, "rejected")
            file.committed, file.failures = line.end, 0
        # The failures of the next line are saved too, so that a restart does not begin to count at zero.
        positions = {
            name: (file.inode, file.committed, file.failures) for name, file in self._files.items()
        }
        await to_thread.run_sync(save_positions, self._directory, positions)

    def get_advance_lane(self, broker_payload: Line) -> str:
        return broker_payload.file

    def get_idempotency_key(self, broker_payload: Line) -> str:
        return f"{broker_payload.file}/{broker_payload.inode}/{broker_payload.begin}"

    def dead_letters_rejected(self, broker_payload: Line) -> bool:
        return True

    def get_size(self, broker_payload: Line) -> int:
        return len(broker_payload.raw)

    def get_position(self, broker_payload: Line) -> list[int]:
        return [broker_payload.inode, broker_payload.begin]

    async def read_lane(
        self, lane: Hashable, position: list[Any]
    ) -> AsyncIterator[tuple[Line, Line]]:
        name = str(lane)  # the file's name: see `get_advance_lane`
        inode, number = position
        begin = await to_thread.run_sync(line_at, self._directory / name, number)
        file = _File(inode, begin, begin)
        while True:
            # A file with another inode is read from its beginning.
            lines = await to_thread.run_sync(read_lines, self._directory, {name: file}, name)
            for line in lines:
                if line.inode != file.inode:
                    _log.warning("%s was created again; it is read from its beginning", name)
                    file = _File(line.inode, 0, 0)
                file.read = line.end
                yield line, line
            if not lines:
                await anyio.sleep(self._poll_s)

    async def find_positions(self, start: datetime | None) -> Mapping[Hashable, list[Any]]:
        return await to_thread.run_sync(find_positions, self._directory, start)

    def dump_event(self, event: Line) -> bytes:
        fields = [event.file, event.inode, event.begin, event.end]
        return json.dumps(fields).encode() + b"\n" + event.raw

    def load_event(self, data: bytes) -> Line:
        fields, _, raw = data.partition(b"\n")
        file, inode, begin, end = json.loads(fields)
        return Line(file, inode, begin, end, raw, delivery=0)

    async def dead_letter(self, event: Line, reason: str) -> None:
        entry = {"file": event.file, "offset": event.begin, "line": event.raw.decode("latin-1")}
        await to_thread.run_sync(
            append, self._directory / _DEAD_LETTERS, entry | {"reason": reason}
        )

    async def pause(self) -> None:
        self._paused = anyio.Event()

    async def resume(self) -> None:
        if self._paused is not None:
            self._paused.set()
        self._paused = None


def read_lines(directory: Path, files: dict[str, _File], name: str = "*.lines") -> list[Line]:
    """Return the next complete lines of each file, in order."""
    lines: list[Line] = []
    for path in sorted(directory.glob(name)):
        with path.open("rb") as opened:
            inode = os.fstat(opened.fileno()).st_ino
            file = files.get(path.name)
            if file is None or file.inode != inode:
                file = _File(inode, 0, 0)
            begin = file.read
            opened.seek(begin)
            for raw in islice(opened, _BATCH):
                if not raw.endswith(b"\n"):
                    break  # still being written
                end = begin + len(raw)
                lines.append(Line(path.name, inode, begin, end, raw[:-1], file.delivery))
                begin = end
    return lines


def line_at(path: Path, position: int) -> int:
    """Return the position of the first line that begins at `position` or after it."""
    with path.open("rb") as opened:
        if position:
            opened.seek(position - 1)
            opened.readline()
        return opened.tell()


def find_positions(directory: Path, start: datetime | None) -> Mapping[Hashable, list[Any]]:
    """Return the beginning of each file, or the end of a file that was not written since `start`.

    The lines have no times, so a position within a file cannot be found.
    """
    positions: dict[Hashable, list[Any]] = {}
    for path in directory.glob("*.lines"):
        status = path.stat()
        is_old = start is not None and status.st_mtime < start.timestamp()
        positions[path.name] = [status.st_ino, status.st_size if is_old else 0]
    return positions


def append(path: Path, entry: dict[str, Any]) -> None:
    """Add a line of JSON, durably."""
    with path.open("a") as file:
        file.write(json.dumps(entry) + "\n")
        file.flush()
        os.fsync(file.fileno())


def load_positions(directory: Path) -> dict[str, tuple[int, int, int]]:
    """Return for each file name: inode, number of consumed bytes, failures of the next line."""
    path = directory / _POSITIONS
    if not path.exists():
        return {}
    found = json.loads(path.read_text())
    return {name: (inode, end, failures) for name, (inode, end, failures) in found.items()}


def save_positions(directory: Path, positions: dict[str, tuple[int, int, int]]) -> None:
    """Save positions durably, all or none. Files that are not named keep their saved positions."""
    path = directory / _POSITIONS
    new = path.with_suffix(".new")
    with new.open("w") as file:
        json.dump(load_positions(directory) | positions, file)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
