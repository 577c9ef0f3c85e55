"""The runs of another timetable, with partition keys made from their data intervals."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from typing import Any, Self

from triggerer.domain.timetables.base import DataInterval, Timetable
from triggerer.domain.timetables.derived import DerivedTimetable, check_timetable
from triggerer.domain.timetables.interval_keys import DEFAULT_KEY_FORMAT, IntervalKeys
from triggerer.domain.timetables.serialization import timetable_from_json, timetable_to_json
from triggerer.domain.timetables.zones import checked_zone, zone_to_json
from triggerer.errors import DagError


@dataclass(frozen=True, slots=True)
class Keyed(DerivedTimetable):
    """Gives each run of a timetable a partition key: the start of the run's data interval.

    The events that the run emits get the key, too.

    Args:
        timezone: The zone of the time in the key.
        key_format: A format of `strftime` that may also contain `{quarter}`. With `%z`, two runs in an hour that the
            clock shows twice have different keys.
    Raises:
        DagError: The timetable waits for assets or already has keys, or another argument is invalid.
    """

    timetable: Timetable
    timezone: tzinfo | str | int = field(kw_only=True)
    key_format: str = field(kw_only=True, default=DEFAULT_KEY_FORMAT)
    _keys: IntervalKeys = field(init=False, repr=False, compare=False)

    partitioned = True

    def __post_init__(self) -> None:
        check_timetable(self.timetable, "Keyed")
        if self.timetable.has_assets:
            raise DagError(f"Keyed takes a timetable without assets, not {self.timetable!r}")
        if self.timetable.partitioned:
            raise DagError(f"the runs of {self.timetable!r} have partition keys already")
        zone = checked_zone(self.timezone)
        object.__setattr__(self, "timezone", zone)
        object.__setattr__(self, "_keys", IntervalKeys(self.key_format, zone))

    @property
    def description(self) -> str:  # type: ignore[override]
        return f"{self.timetable.description}, for the partition that starts with the data interval"

    @property
    def keys(self) -> IntervalKeys:
        """The object that writes the partition keys, and reads them."""
        return self._keys

    @property
    def summary(self) -> str:
        return self.timetable.summary

    def partition_key(self, interval: DataInterval) -> str:
        return self._keys.key(interval.start)

    def to_partition_date(self, key: str) -> datetime:
        return self._keys.start(key)

    def serialize(self) -> dict[str, Any]:
        return {
            "timetable": timetable_to_json(self.timetable),
            "timezone": zone_to_json(self._keys.zone),
            "key_format": self.key_format,
        }

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> Self:
        return cls(
            timetable_from_json(data["timetable"]),
            timezone=data["timezone"],
            key_format=data["key_format"],
        )
