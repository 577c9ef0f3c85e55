"""The rows of trigger events by column: what differs from row to row, and once for many rows what these share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple


class SharedFields(NamedTuple):
    """What the rows of one watcher have in common that were submitted in one turn of the event loop."""

    asset_id: int
    timestamp: datetime
    watcher_id: int
    ordinal: int
    fence_number: int
    """Of the fence that the rows need, counted from 1; 0: none."""


@dataclass(frozen=True, slots=True)
class EventRows:
    """Rows of `asset_event`. They are not copied, and are not changed while they are written.

    Drivers encode each value of a column: to send what is shared with every row would take PostgreSQL's three times
    as long.
    """

    extras: Sequence[str]
    """JSON texts."""
    keys: Sequence[str]
    """The idempotency keys."""
    shared_indices: Sequence[int]
    """For each row the index, from 0, of its fields in `shared`."""
    shared: Sequence[SharedFields]
    partition_keys: Sequence[str | None] | None = None
    """None: no row has one, as is the rule."""

    def __len__(self) -> int:
        return len(self.keys)

    def fence_numbers(self) -> list[int]:
        """For each row the number of its fence."""
        return self._of_each_row([fields.fence_number for fields in self.shared])

    def columns(self) -> list[Sequence[Any]]:
        """The first fields of an `EventRow`, a sequence for each: with the partition key only if a row has one."""
        asset_ids, timestamps, watcher_ids, ordinals, _ = map(
            self._of_each_row, zip(*self.shared, strict=True)
        )
        columns = [asset_ids, self.extras, timestamps, watcher_ids, self.keys, ordinals]
        return columns if self.partition_keys is None else [*columns, self.partition_keys]

    def _of_each_row(self, values: Sequence[Any]) -> list[Any]:
        return list(map(values.__getitem__, self.shared_indices))
