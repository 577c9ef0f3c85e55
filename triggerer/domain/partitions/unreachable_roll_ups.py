"""Finds each `RollupMapper` whose `window` does not fit the period of its `upstream_mapper`.

With such a mapper, runs never start, or start too early.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

from triggerer.domain.partitions import (
    RollupMapper,
    SegmentWindow,
    TemporalMapper,
    mapper_from_json,
)
from triggerer.domain.partitions.base import downstream_keys
from triggerer.domain.partitions.windows import Direction
from triggerer.domain.schedules import OnPartitions, Schedule
from triggerer.errors import DagError

_LOOKED_AT: Final = 12
"""The number of periods to check: one in each month, because months differ in length."""
_APART: Final = timedelta(days=31)


def impossible_roll_ups(schedule: Schedule | None, *, now: datetime) -> Iterator[str]:
    """Yield one warning for each of the DAG's roll-ups that cannot work; usually none.

    Args:
        now: Only the year counts, so that the warnings do not change from hour to hour.
    Raises:
        Exception: A third-party mapper raised it.
    """
    if not isinstance(schedule, OnPartitions):
        return
    mappers = map(mapper_from_json, (schedule.default_mapper, *schedule.mappers.values()))
    told = {
        sentence: None
        for one in mappers
        if isinstance(one, RollupMapper)
        for sentence in _of_roll_up(one, now)
    }
    yield from told


def _of_roll_up(mapper: RollupMapper, now: datetime) -> Iterator[str]:
    for number, event_key in enumerate(_event_keys(mapper, now)):
        for key in downstream_keys(mapper, event_key):
            sentence = _never(mapper, key, now)
            if sentence is None and number == 0:
                sentence = _misfit(mapper, key)
            if sentence is not None:
                yield sentence
                return


def _event_keys(mapper: RollupMapper, now: datetime) -> Iterator[str]:
    if isinstance(mapper.window, SegmentWindow):
        yield min(mapper.window.segments)
    elif isinstance(reader := mapper.upstream_mapper, TemporalMapper):
        first = datetime(now.year, 1, 5, 12, 34, tzinfo=UTC)
        yield from (reader.key_at(first + number * _APART) for number in range(_LOOKED_AT))


def _never(mapper: RollupMapper, key: str, now: datetime) -> str | None:
    try:
        reason = mapper.progress(key, (), now=now, first_event_at=now).unreachable
    except DagError as error:
        reason = error.message
    return (
        None if reason is None else f"the run of the partition key {key!r} never starts: {reason}"
    )


def _misfit(mapper: RollupMapper, key: str) -> str | None:
    reader, window = mapper.upstream_mapper, mapper.window
    but = f"a {type(window).__name__} is not the period of {type(reader).__name__}"
    for part in sorted(mapper.to_upstream(key)):
        runs = downstream_keys(mapper, part)
        if key not in runs:
            return (
                f"the run of the partition key {key!r} waits for {part!r}, "
                f"which is for {', '.join(runs)}: {but}"
            )
    if not isinstance(reader, TemporalMapper) or window.direction is Direction.BACKWARD:
        return None
    end = window.end(reader.decode_downstream(key))
    if end is not None and key in downstream_keys(mapper, reader.key_at(reader.instant(end))):
        return f"the run of the partition key {key!r} does not wait for the events from {end} on: {but}"
    return None
