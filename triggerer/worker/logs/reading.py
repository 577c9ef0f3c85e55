"""Reads a run's log: its end, or all of it without the bytes that were cut, see `triggerer.worker.logs.limit`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from triggerer.worker.logs.limit import next_hole

_CHUNK_BYTES: Final = 65_536


def tail(path: str | Path, size: int = 4000) -> str:
    """Return the last `size` bytes of a file as text; empty if the file cannot be read."""
    try:
        with Path(path).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - size))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def parts_of(log: BinaryIO, start: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield the bytes of a log from `start` on, each part with its position. Bytes that were cut are left out.

    If the log grows while the caller reads, the new bytes are included.

    Args:
        log: The log, opened in binary mode without a buffer.
    """
    position = start
    while True:
        hole = next_hole(log.fileno(), position)
        if hole is not None and hole[0] <= position:
            position = hole[1]
            hole = next_hole(log.fileno(), position)
        most = _CHUNK_BYTES if hole is None else min(_CHUNK_BYTES, hole[0] - position)
        log.seek(position)
        part = log.read(most)
        if not part:
            return
        yield position, part
        position += len(part)
