"""The database rows of trigger events, as columns. Fields that many rows share are sent only once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple


class SharedFields(NamedTuple):
    """The fields that are equal in all rows with one watcher, ordinal and timestamp."""

    asset_id: int
    timestamp: datetime
    watcher_id: int
    ordinal: int
    fence_number: int
    """The number of the fence (lease) under which the rows may be written, counted from 1; 0 if they need no fence."""


@dataclass(frozen=True, slots=True)
class EventRows:
    """Rows of `asset_event`, as columns. The lists are not copied, so nothing may change them while they are written.

    Fields that many rows share are sent only once (`shared`). PostgreSQL's driver would need three times as long to
    encode these fields for every row.
    """

    extras: Sequence[str]
    """JSON texts."""
    keys: Sequence[str]
    """The idempotency keys."""
    shared_indices: Sequence[int]
    """For each row, the index of its fields in `shared`, from 0."""
    shared: Sequence[SharedFields]
    partition_keys: Sequence[str | None] | None = None
    """None if no row has a partition key, the usual case."""

    def __len__(self) -> int:
        return len(self.keys)

    def fence_numbers(self) -> list[int]:
        """Return the number of the fence for each row."""
        return self._of_each_row([fields.fence_number for fields in self.shared])

    def columns(self) -> list[Sequence[Any]]:
        """Return lists for the first six fields of `EventRow`, and one for the partition keys if there are any."""
        asset_ids, timestamps, watcher_ids, ordinals, _ = map(
            self._of_each_row, zip(*self.shared, strict=True)
        )
        columns = [asset_ids, self.extras, timestamps, watcher_ids, self.keys, ordinals]
        return columns if self.partition_keys is None else [*columns, self.partition_keys]

    def _of_each_row(self, values: Sequence[Any]) -> list[Any]:
        return list(map(values.__getitem__, self.shared_indices))
