"""The partition keys of the periods between two instants."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta, tzinfo
from typing import Final

from triggerer.domain.instants import readable
from triggerer.domain.partitions.base import PartitionMapper
from triggerer.domain.partitions.rolling_up import FanOutMapper, RollupMapper
from triggerer.domain.partitions.temporal import TemporalMapper
from triggerer.errors import DagError

MOST_KEYS_AT_ONCE: Final = 50_000
_STEP: Final = timedelta(hours=1)
"""The step of the search for periods. A mapper's periods are shorter than this step only when clocks change."""
_FINE_STEP: Final = timedelta(minutes=1)
_LONGEST: Final = timedelta(days=366)


def keys_between(
    mappers: Iterable[PartitionMapper], start: datetime, end: datetime, *, now: datetime
) -> list[str]:
    """Return the keys of the periods that start between two instants, both included, oldest first.

    Periods that have not ended are left out.

    Args:
        mappers: The mappers of a DAG's assets.
    Raises:
        DagError: The keys of the DAG's runs name no periods, the assets' periods differ, or the range is empty or too
            large.
    """
    writer = _writer(mappers)
    if start > end:
        raise DagError(f"the range is empty: {readable(start)} is after {readable(end)}")
    found: dict[str, None] = {}  # a key may come twice when clocks are set back
    for key, until in _periods(writer, start, min(end, now)):
        if until > now:
            break
        if start <= writer.to_partition_date(key) <= end:
            found[key] = None
        if len(found) > MOST_KEYS_AT_ONCE:
            raise DagError(
                f"there are more than {MOST_KEYS_AT_ONCE} keys", hint="choose a shorter range"
            )
    return list(found)


def _periods(
    writer: TemporalMapper, start: datetime, end: datetime
) -> Iterator[tuple[str, datetime]]:
    """Yield the key and the end of each period that overlaps the time from `start` to `end`."""
    key = _key_at(writer, start)
    for moment in _moments(writer.zone, start):
        if moment > end + _LONGEST:
            return
        following = _key_at(writer, moment)
        if following == key:
            continue
        begins = writer.to_partition_date(following)
        yield key, begins
        if begins > end:
            return
        key = following


def _moments(zone: tzinfo, start: datetime) -> Iterator[datetime]:
    """Yield one instant for each hour after the start, and one for each minute if clocks change in that hour."""
    moment = start
    while True:
        following = moment + _STEP
        if moment.astimezone(zone).utcoffset() != following.astimezone(zone).utcoffset():
            yield from (moment + minute * _FINE_STEP for minute in range(1, 60))
        yield following
        moment = following


def _key_at(writer: TemporalMapper, moment: datetime) -> str:
    local = moment.astimezone(writer.zone)
    return writer.format(writer.normalize(local.replace(tzinfo=None)))


def _writer(mappers: Iterable[PartitionMapper]) -> TemporalMapper:
    """Return the one mapper that writes the keys of the DAG's runs.

    In a roll-up or a fan-out, an inner mapper writes the keys. If the DAG has several mappers, all must write keys of
    the same periods.
    """
    writers = []
    for mapper in mappers:
        inner: PartitionMapper | None = mapper
        if isinstance(mapper, RollupMapper):
            inner = mapper.upstream_mapper
        elif isinstance(mapper, FanOutMapper):
            inner = mapper.downstream_mapper
        if not isinstance(inner, TemporalMapper):
            raise DagError(
                "the keys of this DAG's runs are no periods", hint="name them with --partition-key"
            )
        writers.append(inner)
    first = writers[0]
    kinds = {(type(one), one.output_format, str(one.timezone)) for one in writers}
    if len(kinds) > 1:
        raise DagError(
            "the keys of this DAG's assets are different periods",
            hint="name them with --partition-key",
        )
    return first
