"""Partition keys made from the start of a data interval."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from triggerer.domain.partitions.key_format import KeyFormat
from triggerer.domain.text.storable import check_partition_key
from triggerer.domain.timetables.zones import Zone
from triggerer.errors import DagError, RowRefused

DEFAULT_KEY_FORMAT: Final = "%Y-%m-%dT%H:%M:%S"
_EXAMPLE: Final = datetime(2026, 9, 30, 12, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class IntervalKeys:
    """Converts the start of a data interval to a partition key, in the local time of a zone, and back.

    Args:
        key_format: A format of `strftime` that may also contain `{quarter}`, as in the partition mappers.
    Raises:
        DagError: The format is invalid, or its results are no partition keys.
    """

    key_format: str
    zone: Zone
    _format: KeyFormat = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_format", KeyFormat(self.key_format))
        try:
            check_partition_key(self.key(_EXAMPLE))
        except (RowRefused, ValueError) as error:
            raise DagError(f"{self.key_format!r} writes no partition keys: {error}") from error

    def key(self, start: datetime) -> str:
        """Return the key of the interval that starts at an instant."""
        return self._format.format(start.astimezone(self.zone))

    def start(self, key: str) -> datetime:
        """Return the UTC instant that the key names. If the key names a day, the interval may start later on this day.

        Raises:
            InvalidPartitionKey: The key does not match the format.
        """
        found = self._format.parse(key)
        return (found if found.tzinfo else found.replace(tzinfo=self.zone)).astimezone(UTC)
