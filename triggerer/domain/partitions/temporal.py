"""Mappers of instants to the period that they are in: an hour, a day, … on the clock of a zone."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, ClassVar

from triggerer.domain.partitions.base import PartitionMapper
from triggerer.domain.partitions.key_format import KeyFormat
from triggerer.domain.timetables.zones import checked_zone, zone_to_json

_LEAST = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TemporalMapper(PartitionMapper):
    """A run for each period, under the period's key.

    Args:
        timezone: On whose clock periods start, and event keys without an offset are read.
        input_format: How events write their keys.
        output_format: How runs do; "": as usual for the period.
    Raises:
        DagError: An argument is not understood.
    """

    timezone: tzinfo | str | int = "UTC"
    input_format: str = "%Y-%m-%dT%H:%M:%S"
    output_format: str | None = None
    _input: KeyFormat = field(init=False, repr=False, compare=False)
    _output: KeyFormat = field(init=False, repr=False, compare=False)

    expected_decoded_type: ClassVar[type] = datetime
    default_output_format: ClassVar[str]

    def __post_init__(self) -> None:
        PartitionMapper.__post_init__(self)
        output = self.output_format or self.default_output_format
        object.__setattr__(self, "timezone", checked_zone(self.timezone))
        object.__setattr__(self, "output_format", output)
        object.__setattr__(self, "_input", KeyFormat(self.input_format))
        object.__setattr__(self, "_output", KeyFormat(output))

    @abstractmethod
    def normalize(self, moment: datetime) -> datetime:
        """Return the start of the moment's period, on the same clock."""

    def to_downstream(self, key: str) -> str:
        return self.format(self.normalize(self._local(self._input.parse(key))))

    def key_at(self, moment: datetime) -> str:
        """Return how events write an aware instant."""
        return self._input.format(moment.astimezone(self._zone))

    def format(self, moment: datetime) -> str:
        """Return the key of a period's start."""
        zoned = moment.replace(tzinfo=self._zone) if self._output.has_offset else moment
        return self._output.format(zoned)

    def decode_downstream(self, downstream_key: str) -> datetime:
        return self.normalize(self._local(self._output.parse(downstream_key)))

    def encode_upstream(
        self, decoded: datetime, *, length: timedelta | None = None
    ) -> tuple[str, ...]:
        return self._written(self._input, decoded, length)

    def keys_of_part(self, part: datetime, *, length: timedelta | None) -> tuple[str, ...]:
        """Return the keys of runs for a part of a period, as a window counts it; as a rule it is one.

        Args:
            length: Of a part of a day. Where clocks are set there may be none of it, or two, if keys show the offset.
        """
        if length is None or not self._output.has_offset:
            return (self.format(part),)
        return self._written(self._output, part, length)

    def _written(
        self, style: KeyFormat, decoded: datetime, length: timedelta | None
    ) -> tuple[str, ...]:
        first, second = (decoded.replace(tzinfo=self._zone, fold=fold) for fold in (0, 1))
        shift = _offset(second) - _offset(first)
        keys = (style.format(first), style.format(second))
        if shift <= timedelta(0):  # the clock shows it, perhaps twice
            return keys[1:] if length is None else tuple(dict.fromkeys(keys))
        if length is None:  # a day starts all the same, somewhat later
            return (style.format((decoded + shift).replace(tzinfo=self._zone)),)
        end = (decoded + length - _LEAST).replace(tzinfo=self._zone)
        return keys[1:] if _offset(end) == _offset(end.replace(fold=1)) else ()

    def canonical_upstream(self, key: str) -> str:
        moment = self._input.parse(key)
        return key if moment.tzinfo is None else self._input.format(moment.astimezone(self._zone))

    def to_partition_date(self, downstream_key: str) -> datetime:
        return self.instant(self.decode_downstream(downstream_key))

    def instant(self, decoded: datetime) -> datetime:
        """Return the first instant, in UTC, at which this mapper's clock shows `decoded` or is past it."""
        return decoded.replace(tzinfo=self._zone).astimezone(UTC)

    def serialize(self) -> dict[str, Any]:
        return {
            **PartitionMapper.serialize(self),
            "timezone": zone_to_json(checked_zone(self.timezone)),
            "input_format": self.input_format,
            "output_format": self.output_format,
        }

    @property
    def zone(self) -> tzinfo:
        """The zone on whose clock its periods start."""
        return checked_zone(self.timezone)

    @property
    def _zone(self) -> tzinfo:
        return self.zone

    def _local(self, moment: datetime) -> datetime:
        """Return what this mapper's clock shows."""
        if moment.tzinfo is not None:
            moment = moment.astimezone(self._zone)
        return moment.replace(tzinfo=None)


def _offset(moment: datetime) -> timedelta:
    offset = moment.utcoffset()
    assert offset is not None
    return offset


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOfHourMapper(TemporalMapper):
    """`2024-03-13T10:42:15` is for `2024-03-13T10`."""

    default_output_format = "%Y-%m-%dT%H"

    def normalize(self, moment: datetime) -> datetime:
        # An hour that comes twice is two.
        return moment.replace(minute=0, second=0, microsecond=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOfDayMapper(TemporalMapper):
    """`2024-03-13T10:42:15` is for `2024-03-13`."""

    default_output_format = "%Y-%m-%d"

    def normalize(self, moment: datetime) -> datetime:
        return moment.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOfWeekMapper(TemporalMapper):
    """`2024-03-13T10:42:15` is for its Monday, `2024-03-11 (W11)`."""

    default_output_format = "%Y-%m-%d (W%V)"

    def normalize(self, moment: datetime) -> datetime:
        monday = moment - timedelta(days=moment.weekday())
        return monday.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOfMonthMapper(TemporalMapper):
    """`2024-03-13T10:42:15` is for `2024-03`."""

    default_output_format = "%Y-%m"

    def normalize(self, moment: datetime) -> datetime:
        return moment.replace(day=1, hour=0, minute=0, second=0, microsecond=0, fold=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOfQuarterMapper(TemporalMapper):
    """`2024-03-13T10:42:15` is for `2024-Q1`."""

    default_output_format = "%Y-Q{quarter}"

    def normalize(self, moment: datetime) -> datetime:
        month = (moment.month - 1) // 3 * 3 + 1
        return moment.replace(month=month, day=1, hour=0, minute=0, second=0, microsecond=0, fold=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOfYearMapper(TemporalMapper):
    """`2024-03-13T10:42:15` is for `2024`."""

    default_output_format = "%Y"

    def normalize(self, moment: datetime) -> datetime:
        return moment.replace(month=1, day=1, hour=0, minute=0, second=0, microsecond=0, fold=0)
