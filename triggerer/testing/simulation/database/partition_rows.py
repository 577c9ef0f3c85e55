"""The rows of partition keys in the model of the database. `triggerer.store.partitions.keys` explains the terms."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

NEVER: Final = datetime(9999, 1, 1, tzinfo=UTC)
"""The column's value for a key that does not wait for an instant."""


@dataclass(slots=True)
class Partitions:
    """All stored rows of partition keys for one DAG."""

    queue: dict[int, int | None] = field(default_factory=dict)
    """By event in the DAG's queue: the run that took the event, or `DIVIDED` once the event has shares. None: the event
    waits."""
    shares: dict[tuple[str, int], int | None] = field(default_factory=dict)
    """By key and event: the run that took the event's share, or None while the share waits."""
    parts: dict[tuple[str, int, str], datetime] = field(default_factory=dict)
    """By key, asset and part of the key (such as an hour of a day): the instant of the first event."""
    keys: dict[str, tuple[int, datetime, datetime]] = field(default_factory=dict)
    """By key: the number of runs, when the next run is due, and the instant of the newest event."""
    noted: dict[str, datetime] = field(default_factory=dict)
    """By key: the instant of the scheduler's last calculation of when the key's run is due."""
    next_at: datetime = NEVER
    """When the next key is due, as in the DAG's row."""

    def copy(self, queue: dict[int, int | None]) -> Partitions:
        """Return a copy of the rows, with another queue."""
        rows = (dict(self.shares), dict(self.parts), dict(self.keys))
        return Partitions(dict(queue), *rows, dict(self.noted), self.next_at)

    def waiting(self) -> dict[str, set[int]]:
        """The events that wait for each key."""
        found: dict[str, set[int]] = {}
        for (key, event), run in self.shares.items():
            if run is None:
                found.setdefault(key, set()).add(event)
        return found

    def of_run(self, run: int) -> list[int]:
        """The events that a run took."""
        return [event for (_, event), pk in self.shares.items() if pk == run]

    def take_all(self, key: str, run: int) -> list[int]:
        """Give a run all events that wait for its key. Return the events."""
        taken = [event for (one, event), pk in self.shares.items() if one == key and pk is None]
        self.shares.update(((key, event), run) for event in taken)
        self.parts = {part: at for part, at in self.parts.items() if part[0] != key}
        runs, _, newest = self.keys[key]
        self.keys[key] = (runs + 1, NEVER, newest)
        self.noted.pop(key, None)
        return taken

    def return_to_queue(self) -> None:
        """Return waiting events to the DAG's queue, as `triggerer.store.partitions.remapping` does."""
        back = [share for share, run in self.shares.items() if run is None]
        if not back:
            return
        for share in back:
            del self.shares[share]
            self.queue[share[1]] = None
        self.parts.clear()
        self.noted.clear()
        self.keys = {key: (runs, NEVER, newest) for key, (runs, _, newest) in self.keys.items()}

    def earliest(self) -> datetime:
        """When the next key is due."""
        return min((due for _, due, _ in self.keys.values()), default=NEVER)
