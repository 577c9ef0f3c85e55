"""Merges the ranges of several events into one range for each partition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, Protocol

from triggerer.errors import BrokenRanges
from triggerer.offset_ranges.losses import PartitionRange, may_be_same
from triggerer.offset_ranges.ranges import Gap, KafkaRanges

_FIELDS: Final = ("topic", "topic_id", "partition", "from", "to")
_MOST_SHOWN: Final = 5


class HasExtra(Protocol):
    """An asset event. Only its `extra` is read here."""

    @property
    def extra(self) -> Mapping[str, Any]: ...


def kafka_ranges(events: Iterable[HasExtra], *, allow_gaps: bool = False) -> KafkaRanges:
    """Merge the ranges of events into one range for each partition.

    Args:
        events: Events of a `KafkaRangeTrigger`, such as `triggering_asset_events[asset]`.
        allow_gaps: True: accept missing offsets before or between the ranges, such as offsets that retention deleted.
    Raises:
        BrokenRanges: There is a gap, two ranges overlap, an event has no range, or a topic was deleted and created
            again between two events.
    """
    of_partition: dict[tuple[str, int], list[tuple[PartitionRange, Mapping[str, Any]]]] = {}
    topics: dict[str, PartitionRange] = {}
    for event in events:
        one = _range_of(event)
        known = topics.setdefault(one.topic, one)
        if not may_be_same(known.topic_id, one.topic_id):
            raise _two_incarnations(known, one)
        if known.topic_id is None:
            topics[one.topic] = one
        of_partition.setdefault((one.topic, one.partition), []).append((one, event.extra))
    gaps: list[Gap] = []
    merged = [_merged(found, gaps) for _, found in sorted(of_partition.items())]
    if gaps and not allow_gaps:
        shown = ", ".join(map(str, gaps[:_MOST_SHOWN]))
        raise BrokenRanges(
            f"no event has the offsets {shown}{' and more' if gaps[_MOST_SHOWN:] else ''}",
            hint="retention has probably deleted them: accept it with kafka_ranges(events, allow_gaps=True)",
        )
    return KafkaRanges(tuple(merged), tuple(gaps))


def _merged(
    found: list[tuple[PartitionRange, Mapping[str, Any]]], gaps: list[Gap]
) -> PartitionRange:
    """Merge the ranges of one partition, and add the gaps between them to `gaps`."""
    if not any("rewound_from" in extra for _, extra in found):
        # Without `rewound_from`, the log has not lost its end, so sort by offset. After a loss, new messages get the
        # lost offsets again. Then the order of the events counts, because later ranges replace earlier ones.
        found = sorted(found, key=lambda one: one[0].start)
    (merged, extra), *others = found
    _add_gap(gaps, merged, merged.start - int(extra.get("deleted") or 0))
    for one, extra in others:
        if one.start < merged.end:
            if "rewound_from" not in extra:
                raise _overlap(merged, one)
            merged = replace(merged, start=min(merged.start, one.start), end=one.end)
            continue
        _add_gap(gaps, one, merged.end)
        merged = replace(merged, end=one.end)
    # Brokers report topic ids only since Kafka 2.8, so ranges from before an upgrade lack the id. Use the first id
    # found.
    ids = (one.topic_id for one, _ in found if one.topic_id is not None)
    return replace(merged, topic_id=next(ids, None))


def _add_gap(gaps: list[Gap], one: PartitionRange, after: int) -> None:
    if after < one.start:
        gaps.append(Gap(one.topic, one.partition, after, one.start))


def _range_of(event: HasExtra) -> PartitionRange:
    extra = event.extra
    missing = [name for name in _FIELDS if name not in extra]
    if missing:
        raise BrokenRanges(
            f"an event has no range: its extra lacks {', '.join(missing)}",
            hint="the watcher's trigger must be a KafkaRangeTrigger",
        )
    topic, topic_id, partition, start, end = (extra[name] for name in _FIELDS)
    if not 0 <= start < end:
        raise BrokenRanges(f"{topic}[{partition}] has no offsets from {start} up to {end}")
    return PartitionRange(topic, topic_id, partition, start, end)


def _overlap(one: PartitionRange, other: PartitionRange) -> BrokenRanges:
    return BrokenRanges(
        f"two events have offsets of {one.topic}[{one.partition}] in common: {one.start} to {one.end - 1}, and"
        f" {other.start} to {other.end - 1}",
        hint="the asset has two watchers of this topic: give each an asset of its own",
    )


def _two_incarnations(one: PartitionRange, other: PartitionRange) -> BrokenRanges:
    return BrokenRanges(
        f"the events are of two topics named {one.topic}, with the ids {one.topic_id} and {other.topic_id}: it was"
        " deleted and created again",
        hint="the messages of the former topic are gone: pass only events whose extra['topic_id'] is"
        f" {other.topic_id!r}",
    )
