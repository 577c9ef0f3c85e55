"""Records when asset events became durable, in a separate process that reads the store."""

from __future__ import annotations

import asyncio
import multiprocessing
import sqlite3
import struct
import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import asyncpg

EVERY_S: Final = 0.005
"""The pause between two looks at the store. A latency is too long by at most one pause, and by half on average."""
_HIGHEST: Final = "SELECT coalesce(max(id), 0) FROM asset_event"
_SEEN: Final = struct.Struct("<qq")


class Durable:
    """Tells when the reader first saw each event in the store.

    The reader records the highest id at each poll. This is enough, because ids have the order of the commits.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._highest: list[int] = []
        self._instants: list[int] = []

    def load(self) -> None:
        """Load the observations that the reader has made until now."""
        seen = list(_SEEN.iter_unpack(self._path.read_bytes()))
        self._highest = [highest for highest, _ in seen]
        self._instants = [instant for _, instant in seen]

    def at(self, event_id: int) -> int:
        """Return the instant at which the reader first saw the event (CLOCK_MONOTONIC, ns).

        Raises:
            IndexError: The reader had not seen the event when `load` was called.
        """
        return self._instants[bisect_left(self._highest, event_id)]


@contextmanager
def reader_of(url: str, path: Path) -> Iterator[Durable]:
    """Poll a store in a process of its own until the block ends, and write the observations to `path`.

    The store's tables must exist.
    """
    path.touch()
    process = multiprocessing.get_context("spawn").Process(
        target=_follow, args=(url, path), daemon=True
    )
    process.start()
    try:
        yield Durable(path)
        if not process.is_alive():
            raise RuntimeError(f"the reader of the store ended with {process.exitcode}")
    finally:
        process.terminate()
        process.join()


def _follow(url: str, path: Path) -> None:
    if url.startswith("sqlite"):
        _follow_sqlite(url.split("///", 1)[1], path)
    else:
        asyncio.run(_follow_postgresql(url.replace("+asyncpg", ""), path))


def _follow_sqlite(database: str, path: Path) -> None:
    with (
        closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=30)) as connection,
        path.open("ab", buffering=0) as file,
    ):
        seen = 0
        while True:
            (highest,) = connection.execute(_HIGHEST).fetchone()
            if highest > seen:
                seen = highest
                file.write(_SEEN.pack(seen, time.monotonic_ns()))
            time.sleep(EVERY_S)


async def _follow_postgresql(url: str, path: Path) -> None:
    connection = await asyncpg.connect(url)
    with path.open("ab", buffering=0) as file:
        seen = 0
        while True:
            highest = await connection.fetchval(_HIGHEST)
            if highest > seen:
                seen = highest
                file.write(_SEEN.pack(seen, time.monotonic_ns()))
            await asyncio.sleep(EVERY_S)
