"""Mappers that turn an instant into the period around it, such as an hour or a day, on the clock of a zone."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, ClassVar

from triggerer.domain.partitions.base import PartitionMapper
from triggerer.domain.partitions.key_format import KeyFormat
from triggerer.domain.timetables.zones import Zone, checked_zone, first_shown, zone_to_json


@dataclass(frozen=True, slots=True, kw_only=True)
class TemporalMapper(PartitionMapper):
    """Makes a run for each period, with the period's key.

    Args:
        timezone: The zone of the periods, and of event keys without an offset.
        input_format: The format of the events' keys.
        output_format: The format of the runs' keys; None or "": the default of the period.
    Raises:
        DagError: An argument is invalid.
    """

    timezone: tzinfo | str | int = "UTC"
    input_format: str = "%Y-%m-%dT%H:%M:%S"
    output_format: str | None = None
    _input: KeyFormat = field(init=False, repr=False, compare=False)
    _output: KeyFormat = field(init=False, repr=False, compare=False)
    _zone: Zone = field(init=False, repr=False, compare=False)

    expected_decoded_type: ClassVar[type] = datetime
    default_output_format: ClassVar[str]

    def __post_init__(self) -> None:
        PartitionMapper.__post_init__(self)
        output = self.output_format or self.default_output_format
        object.__setattr__(self, "_zone", checked_zone(self.timezone))
        object.__setattr__(self, "timezone", self._zone)
        object.__setattr__(self, "output_format", output)
        object.__setattr__(self, "_input", KeyFormat(self.input_format))
        object.__setattr__(self, "_output", KeyFormat(output))

    @abstractmethod
    def normalize(self, moment: datetime) -> datetime:
        """Return the start of the moment's period, on the same clock."""

    def to_downstream(self, key: str) -> str:
        return self.format(self.normalize(self._read(self._input, key)))

    def key_at(self, moment: datetime) -> str:
        """Return the event key of an aware instant."""
        return self._input.format(moment.astimezone(self._zone))

    def format(self, moment: datetime) -> str:
        """Return the key of a period's start."""
        return self._output.format(self._begin(moment) if self._output.has_offset else moment)

    def decode_downstream(self, downstream_key: str) -> datetime:
        return self.normalize(self._read(self._output, downstream_key))

    def encode_upstream(
        self, decoded: datetime, *, length: timedelta | None = None
    ) -> tuple[str, ...]:
        if length is not None and self._is_skipped(decoded):
            # The clock skips the beginning of this part, such as an hour. A DAG that runs at each full hour emits no
            # event for this hour, so a roll-up must not wait for the event.
            return ()
        return self._written(self._input, decoded, length)

    def keys_of_part(self, part: datetime, *, length: timedelta | None) -> tuple[str, ...]:
        """Return the run keys of one part that a `Window` lists, such as an hour of a day. Usually a part has one key.

        If keys show the UTC offset, a part that the clock skips has no key, and a part that the clock repeats has two.

        Args:
            length: The part's length if it is less than a day, otherwise None.
        """
        if length is None or not self._output.has_offset:
            return (self.format(part),)
        return self._written(self._output, part, length)

    def _written(
        self, style: KeyFormat, decoded: datetime, length: timedelta | None
    ) -> tuple[str, ...]:
        begin = self._begin(decoded)
        if length is None:
            return (style.format(begin),)
        if begin.replace(tzinfo=None) >= decoded + length:  # the clock skips the whole part
            return ()
        # A time that the clock shows twice begins two parts.
        return tuple(dict.fromkeys((style.format(begin), style.format(begin.replace(fold=1)))))

    def canonical_upstream(self, key: str, *, length: timedelta | None = None) -> str:
        moment = self._read(self._input, key)
        if length is None:  # a day begins once, even if the clock shows its midnight twice or never
            begin = self._begin(moment.replace(fold=0))
            return self._input.format(begin) if begin.date() == moment.date() else key
        return self._input.format(self._begin(moment)) if self._input.has_offset else key

    def to_partition_date(self, downstream_key: str) -> datetime:
        return self.instant(self.decode_downstream(downstream_key))

    def instant(self, decoded: datetime) -> datetime:
        """Return the first UTC instant at which this mapper's clock shows `decoded` or later."""
        return self._begin(decoded).astimezone(UTC)

    def serialize(self) -> dict[str, Any]:
        return {
            **PartitionMapper.serialize(self),
            "timezone": zone_to_json(self._zone),
            "input_format": self.input_format,
            "output_format": self.output_format,
        }

    @property
    def zone(self) -> Zone:
        """The zone of the mapper's periods."""
        return self._zone

    def _begin(self, moment: datetime) -> datetime:
        """Return, in the mapper's zone, the first instant at which its clock shows `moment` or later."""
        return first_shown(moment, self._zone)

    def _is_skipped(self, moment: datetime) -> bool:
        return self._begin(moment).replace(tzinfo=None) != moment

    def _read(self, style: KeyFormat, key: str) -> datetime:
        """Return the time that a key names, on this mapper's clock, without a zone."""
        moment = style.parse(key)
        if moment.tzinfo is None:
            return moment
        # If the clock skips the beginning of the period that the key names, return the first time that the clock shows
        # in the period. For example, on Lord Howe Island the hour `T02+1100` begins at 02:30.
        wall = moment.replace(tzinfo=None)
        is_rest = self._is_skipped(wall) and style.format(self._begin(wall)) == key
        local = self._begin(wall) if is_rest else moment.astimezone(self._zone)
        return local.replace(tzinfo=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOfHourMapper(TemporalMapper):
    """A run for each hour: an event of `2024-03-13T10:42:15` belongs to the run `2024-03-13T10`."""

    default_output_format = "%Y-%m-%dT%H"

    def normalize(self, moment: datetime) -> datetime:
        # When clocks are set back, one hour occurs twice, as two periods. Return the start that has the moment's UTC
        # offset.
        start = moment.replace(minute=0, second=0, microsecond=0, fold=1, tzinfo=self._zone)
        is_second = start.utcoffset() == moment.replace(tzinfo=self._zone).utcoffset()
        return start.replace(tzinfo=None, fold=int(is_second))


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
