"""Windows list the parts of a period: the hours of a day, the days of a month, or fixed segments."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, ClassVar, Self

from triggerer.domain.partitions.keys import checked_keys
from triggerer.errors import DagError

_HOUR, _DAY = timedelta(hours=1), timedelta(days=1)


class Direction(StrEnum):
    """Whether a window extends forward or backward from the start of the run's period."""

    FORWARD = "forward"
    """The window's first part starts with the period."""
    BACKWARD = "backward"
    """The window's last part starts with the period."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window(ABC):
    """Lists the parts of a period.

    A part is a string (a segment), or a time without a zone on the clock of the window's mapper.

    Raises:
        DagError: `direction` is neither "forward" nor "backward".
    """

    direction: Direction = Direction.FORWARD

    Direction: ClassVar[type[Direction]] = Direction
    expected_decoded_type: ClassVar[type] = str
    """The type that the mapper's `decode_downstream` must return for this window: datetime, or text."""
    part: ClassVar[timedelta | None] = None
    """The length of the parts, if they are shorter than a day. A clock change adds or removes such parts.

    None: the parts are texts, or last a day or longer.
    """

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "direction", Direction(self.direction))
        except ValueError:
            raise DagError(
                f'direction is "forward" or "backward", not {self.direction!r}'
            ) from None

    @abstractmethod
    def to_upstream(self, decoded_downstream: Any) -> Iterable[Any]:
        """Return the parts, in order."""

    def end(self, decoded_downstream: Any) -> datetime | None:
        """Return the end of the last part, or None if the window is no period."""
        return None

    def serialize(self) -> dict[str, Any]:
        """Return JSON from which `deserialize` makes an equal window."""
        return {"direction": self.direction.value}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> Self:
        """Return the window that `serialize` wrote."""
        return cls(**data)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Steps(Window):
    """A window with a fixed number of parts of equal length."""

    expected_decoded_type: ClassVar[type] = datetime
    _count: ClassVar[int]
    _step: ClassVar[timedelta]

    def to_upstream(self, decoded_downstream: datetime) -> Iterable[datetime]:
        first = decoded_downstream
        if self.direction is Direction.BACKWARD:
            first -= (self._count - 1) * self._step
        return [first + number * self._step for number in range(self._count)]

    def end(self, decoded_downstream: datetime) -> datetime:
        parts = 1 if self.direction is Direction.BACKWARD else self._count
        return decoded_downstream + parts * self._step


@dataclass(frozen=True, slots=True, kw_only=True)
class HourWindow(_Steps):
    """An hour, whose parts are its 60 minutes."""

    _count, _step = 60, timedelta(minutes=1)
    part = _step


@dataclass(frozen=True, slots=True, kw_only=True)
class DayWindow(_Steps):
    """A day, whose parts are its 24 hours.

    A day on which the clock skips an hour has 23 parts. A day on which the clock repeats an hour has 25 parts if the
    event keys show the UTC offset, otherwise 24.
    """

    _count, _step = 24, _HOUR
    part = _step


@dataclass(frozen=True, slots=True, kw_only=True)
class WeekWindow(_Steps):
    """A week, whose parts are its seven days."""

    _count, _step = 7, _DAY


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthWindow(Window):
    """A month, whose parts are its days."""

    expected_decoded_type: ClassVar[type] = datetime

    def to_upstream(self, decoded_downstream: datetime) -> Iterable[datetime]:
        anchor = _first_of_month(decoded_downstream)
        if self.direction is Direction.BACKWARD:
            first, last = _shifted(anchor, -1) + _DAY, anchor
        else:
            first, last = anchor, _shifted(anchor, 1) - _DAY
        return [first + number * _DAY for number in range((last - first).days + 1)]

    def end(self, decoded_downstream: datetime) -> datetime:
        anchor = _first_of_month(decoded_downstream)
        return anchor + _DAY if self.direction is Direction.BACKWARD else _shifted(anchor, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Months(Window):
    """A window whose parts are a fixed number of months."""

    expected_decoded_type: ClassVar[type] = datetime
    _count: ClassVar[int]

    def to_upstream(self, decoded_downstream: datetime) -> Iterable[datetime]:
        first = _first_of_month(decoded_downstream)
        if self.direction is Direction.BACKWARD:
            first = _shifted(first, 1 - self._count)
        return [_shifted(first, number) for number in range(self._count)]

    def end(self, decoded_downstream: datetime) -> datetime:
        months = 1 if self.direction is Direction.BACKWARD else self._count
        return _shifted(_first_of_month(decoded_downstream), months)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarterWindow(_Months):
    """A quarter, whose parts are its three months."""

    _count = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class YearWindow(_Months):
    """A year, whose parts are its twelve months."""

    _count = 12


@dataclass(frozen=True, slots=True, init=False)
class SegmentWindow(Window):
    """A window whose parts are a fixed set of keys, such as regions.

    Raises:
        DagError: The set is empty, or a key is empty or not a string.
    """

    segments: frozenset[str] = field()

    def __init__(self, segments: Iterable[str]) -> None:
        found = checked_keys(segments, "SegmentWindow")
        object.__setattr__(self, "segments", frozenset(found))
        object.__setattr__(self, "direction", Direction.FORWARD)

    def to_upstream(self, decoded_downstream: Any) -> Iterable[str]:
        return sorted(self.segments)

    def serialize(self) -> dict[str, Any]:
        return {"segments": sorted(self.segments)}


def _first_of_month(moment: datetime) -> datetime:
    if moment.day != 1:
        raise DagError(f"a window of months or days counts from the first of a month, not {moment}")
    return moment


def _shifted(moment: datetime, months: int) -> datetime:
    total = moment.year * 12 + moment.month - 1 + months
    return moment.replace(year=total // 12, month=total % 12 + 1)
