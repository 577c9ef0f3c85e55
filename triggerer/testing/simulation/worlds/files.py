"""DAG files of the simulated world."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from random import Random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from triggerer.testing.simulation.brokers.stream import Declared, Stream
    from triggerer.testing.simulation.database.model import Store

_LONGEST_IMPORT_S: Final = 12.0


@dataclass(slots=True)
class File:
    """A file that declares one watcher."""

    stream: Stream
    declared: Declared
    import_s: float
    version: int = 0
    back_at: float | None = None
    """The virtual time at which a missing file is written again, or None if the file exists."""


class Files:
    """The DAGs folder, which survives restarts of the simulated process.

    The folder has its own random generator, so that its draws do not change the seed's other random choices.
    """

    def __init__(self, seed: int, store: Store) -> None:
        self.random = Random(f"files {seed}")
        self.by_path: dict[str, File] = {}
        self.stored: dict[str, datetime | None] = {}
        """The files whose watchers are stored, each with the time when the file went missing. None: the file exists."""
        self.is_reading: Callable[[], bool] = lambda: True
        """Whether the current `FileReader` has files to read."""
        self.on_change: Callable[[], None] = lambda: None
        """Tells the current `FileReader` that files were written or deleted."""
        self._store = store

    def add(self, stream: Stream, declared: Declared, *, is_slow: bool) -> None:
        """Write a file that declares this watcher."""
        import_s = self.random.uniform(1.0, _LONGEST_IMPORT_S) if is_slow else 0.02
        self.by_path[f"{declared.ref.watcher_id}.py"] = File(stream, declared, import_s)
        self.on_change()

    def delete(self, watcher: int) -> None:
        """Delete the watcher's file for ever."""
        self.by_path.pop(f"{watcher}.py", None)
        self.on_change()

    def of(self, stream: Stream) -> set[int]:
        """Return the watchers that files declare for this stream."""
        return {
            file.declared.ref.watcher_id for file in self.by_path.values() if file.stream is stream
        }

    @property
    def is_busy(self) -> bool:
        """Whether a file is being replaced or read, or a stream waits for a file.

        While this is true, no clock jumps, because a jump would end these waits too early.
        """
        return (
            self.is_reading()
            or any(file.back_at is not None for file in self.by_path.values())
            or any(since is not None for since in self.stored.values())
            or any(self._store.closed_until.values())
        )
