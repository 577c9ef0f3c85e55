"""Mappers that turn an instant into the period around it, such as an hour or a day, on the clock of a zone."""

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
        timezone: The zone of the periods, and of event keys without an offset.
        input_format: The format of the events' keys.
        output_format: The format of the runs' keys; "": the default of the period.
    Raises:
        DagError: An argument is invalid.
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
        """Return the event key of an aware instant."""
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
        """Return the run keys of one part of a window; usually there is one.

        Args:
            length: The part's length if it is less than a day. If keys show the offset, a clock change may leave no key
                or two keys.
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
        if shift <= timedelta(0):  # the clock shows this time, perhaps twice
            return keys[1:] if length is None else tuple(dict.fromkeys(keys))
        if length is None:  # the day starts at the first time after the gap
            return (style.format((decoded + shift).replace(tzinfo=self._zone)),)
        end = (decoded + length - _LEAST).replace(tzinfo=self._zone)
        return keys[1:] if _offset(end) == _offset(end.replace(fold=1)) else ()

    def canonical_upstream(self, key: str) -> str:
        moment = self._input.parse(key)
        return key if moment.tzinfo is None else self._input.format(moment.astimezone(self._zone))

    def to_partition_date(self, downstream_key: str) -> datetime:
        return self.instant(self.decode_downstream(downstream_key))

    def instant(self, decoded: datetime) -> datetime:
        """Return the first UTC instant at which this mapper's clock shows `decoded` or later."""
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
        """The zone of the mapper's periods."""
        return checked_zone(self.timezone)

    @property
    def _zone(self) -> tzinfo:
        return self.zone

    def _local(self, moment: datetime) -> datetime:
        """Return the time on this mapper's clock, without a zone."""
        if moment.tzinfo is not None:
            moment = moment.astimezone(self._zone)
        return moment.replace(tzinfo=None)


def _offset(moment: datetime) -> timedelta:
    offset = moment.utcoffset()
    assert offset is not None
    return offset


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOfHourMapper(TemporalMapper):
    """A run for each hour: an event of `2024-03-13T10:42:15` belongs to the run `2024-03-13T10`."""

    default_output_format = "%Y-%m-%dT%H"

    def normalize(self, moment: datetime) -> datetime:
        # Keep `fold`: an hour that occurs twice has two periods.
        return moment.replace(minute=0, second=0, microsecond=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOfDayMapper(TemporalMapper):
    """A run for each day: an event of `2024-03-13T10:42:15` belongs to the run `2024-03-13`."""

    default_output_format = "%Y-%m-%d"

    def normalize(self, moment: datetime) -> datetime:
        return moment.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOfWeekMapper(TemporalMapper):
    """A run for each week, named by its Monday: an event of `2024-03-13T10:42:15` belongs to `2024-03-11 (W11)`."""

    default_output_format = "%Y-%m-%d (W%V)"

    def normalize(self, moment: datetime) -> datetime:
        monday = moment - timedelta(days=moment.weekday())
        return monday.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOfMonthMapper(TemporalMapper):
    """A run for each month: an event of `2024-03-13T10:42:15` belongs to the run `2024-03`."""

    default_output_format = "%Y-%m"

    def normalize(self, moment: datetime) -> datetime:
        return moment.replace(day=1, hour=0, minute=0, second=0, microsecond=0, fold=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOfQuarterMapper(TemporalMapper):
    """A run for each quarter: an event of `2024-03-13T10:42:15` belongs to the run `2024-Q1`."""

    default_output_format = "%Y-Q{quarter}"

    def normalize(self, moment: datetime) -> datetime:
        month = (moment.month - 1) // 3 * 3 + 1
        return moment.replace(month=month, day=1, hour=0, minute=0, second=0, microsecond=0, fold=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOfYearMapper(TemporalMapper):
    """A run for each year: an event of `2024-03-13T10:42:15` belongs to the run `2024`."""

    default_output_format = "%Y"

    def normalize(self, moment: datetime) -> datetime:
        return moment.replace(month=1, day=1, hour=0, minute=0, second=0, microsecond=0, fold=0)
