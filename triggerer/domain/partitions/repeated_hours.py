"""Finds key formats that give two hours the same key in the night when clocks are set back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from triggerer.domain.partitions import (
    ChainMapper,
    FanOutMapper,
    PartitionMapper,
    ProductMapper,
    RollupMapper,
    StartOfHourMapper,
    TemporalMapper,
    mapper_from_json,
)
from triggerer.domain.schedules import OnPartitions, Schedule, timetable_in
from triggerer.domain.timetables.base import DataInterval, Timetable
from triggerer.domain.timetables.cron.partitions import CronPartitionTimetable
from triggerer.domain.timetables.derived import DerivedTimetable
from triggerer.domain.timetables.interval_keys import IntervalKeys
from triggerer.domain.timetables.keyed import Keyed
from triggerer.domain.timetables.zones import Zone, zone_name

_HOUR: Final = timedelta(hours=1)
_DAY: Final = timedelta(days=1)
_LOOKED_AHEAD: Final = 400
"""The number of days to search. Zones that change their clocks do so every year."""
_SECOND: Final = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class _Overlap:
    """Clock times that occur twice in a zone, because clocks are set back."""

    zone: Zone
    turn: datetime
    """The instant at which clocks are set back. The clock times occur once before this instant, and once after it."""
    length: timedelta

    def beginnings(self, part: timedelta) -> tuple[datetime, ...]:
        """Return two instants, earlier first, that show the same clock time, and at which a part of the day begins.

        For example, if the clock shows the time from 02:00 to 03:00 twice, an hour begins at both instants of 02:00.
        The tuple is empty if no part begins in the repeated time.

        Args:
            part: The length of the parts, such as an hour.
        """
        shown = self.turn.astimezone(self.zone).replace(tzinfo=None)
        until = (shown.replace(hour=0, minute=0, second=0) - shown) % part
        return (self.turn - self.length + until, self.turn + until) if until < self.length else ()

    @property
    def where(self) -> str:
        day = self.turn.astimezone(self.zone).date()
        return f"when clocks are set back in {zone_name(self.zone)}, next on {day}"


def repeated_keys(schedule: Schedule | None, *, now: datetime) -> Iterator[str]:
    """Yield a warning for each of a DAG's key formats that gives two hours the same key when clocks are set back.

    Args:
        now: The search for the next night with clocks set back begins at this instant.
    Raises:
        Exception: A third-party timetable raised it.
    """
    if isinstance(schedule, OnPartitions):
        mappers = (schedule.default_mapper, *schedule.mappers.values())
        yield from dict.fromkeys(
            sentence for one in mappers for sentence in _of_mapper(mapper_from_json(one), now)
        )
        return
    timetable = timetable_in(schedule)
    keys = None if timetable is None else _keys_of(timetable)
    overlap = None if keys is None else _next_overlap(keys.zone, now)
    if timetable is None or keys is None or overlap is None:
        return
    key = _repeated(timetable, keys, overlap)
    if key is not None:
        yield (
            f"{overlap.where}, two runs have the partition key {key!r}: "
            "with %z in key_format each has its own"
        )


def _keys_of(timetable: Timetable) -> IntervalKeys | None:
    """Return the object that writes the timetable's keys; None: the timetable has no keys, or is third-party code."""
    match timetable:
        case CronPartitionTimetable() | Keyed():
            return timetable.keys
        case DerivedTimetable():
            return _keys_of(timetable.timetable)
    return None


def _repeated(timetable: Timetable, keys: IntervalKeys, overlap: _Overlap) -> str | None:
    """Return a key that two runs share because clocks are set back between them; None: no two runs share a key."""
    noon = overlap.turn + _DAY / 2
    if keys.key(noon) == keys.key(noon + overlap.length):
        # The keys are for longer periods, such as a day. Several hours share such a key on purpose.
        return None
    begin, end = overlap.turn - overlap.length, overlap.turn + overlap.length
    restriction = timetable.restriction_between(begin, end - _SECOND)
    first: dict[datetime, str] = {}
    last: DataInterval | None = None
    while (
        info := timetable.next_dagrun_info(
            last_automated_data_interval=last, restriction=restriction
        )
    ) is not None:
        start = info.logical_date
        if start >= end or (last is not None and start <= last.start):
            break
        last = info.data_interval
        shown, key = start.astimezone(keys.zone).replace(tzinfo=None, fold=0), keys.key(start)
        if begin <= start < overlap.turn:
            first[shown] = key
        elif start >= overlap.turn and first.get(shown) == key:
            return key
    return None


def _of_mapper(mapper: PartitionMapper, now: datetime) -> Iterator[str]:
    match mapper:
        case ChainMapper() | ProductMapper():
            for part in mapper.mappers:
                yield from _of_mapper(part, now)
        case FanOutMapper(downstream_mapper=PartitionMapper() as writer):
            yield from _of_mapper(writer, now)
        case RollupMapper(upstream_mapper=TemporalMapper() as reader) if mapper.window.part:
            overlap = _next_overlap(reader.zone, now)
            keys = set() if overlap is None else _written(reader, overlap, mapper.window.part)
            if overlap is not None and len(keys) == 1:
                (key,) = keys
                yield (
                    f"{overlap.where}, {key!r} is the partition key of two parts of a "
                    f"{type(mapper.window).__name__}, and the run does not wait for both: "
                    "with %z in input_format each has its own"
                )
        case StartOfHourMapper():
            overlap = _next_overlap(mapper.zone, now)
            if overlap is None:
                return
            hours = {mapper.to_downstream(key) for key in _written(mapper, overlap, _HOUR)}
            if len(hours) == 1:
                yield (
                    f"{overlap.where}, two hours have the partition key {hours.pop()!r}: "
                    "with %z in input_format and output_format each has its own"
                )


def _written(mapper: TemporalMapper, overlap: _Overlap, part: timedelta) -> set[str]:
    """Return the event keys of the two parts that begin at a repeated clock time. Empty: there are no such parts."""
    return {mapper.key_at(begins) for begins in overlap.beginnings(part)}


def _next_overlap(zone: Zone, after: datetime) -> _Overlap | None:
    """Return the next clock times that occur twice in the zone; None: clocks are not set back within a year."""

    def offset(moment: datetime) -> timedelta:
        found = moment.astimezone(zone).utcoffset()
        assert found is not None
        return found

    begin = after.replace(microsecond=0)
    for _ in range(_LOOKED_AHEAD):
        end = begin + _DAY
        if offset(end) < offset(begin):
            length = offset(begin) - offset(end)
            while end - begin > _SECOND:
                middle = begin + (end - begin) // 2 // _SECOND * _SECOND
                begin, end = (middle, end) if offset(middle) == offset(begin) else (begin, middle)
            return _Overlap(zone, end, length)
        begin = end
    return None
