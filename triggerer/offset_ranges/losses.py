"""Compares ranges with the offsets that the brokers' logs still have. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """Offsets of one partition: from `start` (inclusive) to `end` (exclusive). `topic_id` is None for old brokers."""

    topic: str
    topic_id: str | None
    partition: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}] {self.start} to {self.end - 1}"


class LogBounds(Protocol):
    """The offsets that a partition's log has: from `first` (inclusive) to `end` (exclusive)."""

    @property
    def first(self) -> int: ...
    @property
    def end(self) -> int: ...


def may_be_same(one: str | None, other: str | None) -> bool:
    """Return whether two ids may be of one incarnation of a topic. An unknown id (None, of old brokers) may be any."""
    return one == other or None in (one, other)


def compare(
    ranges: Iterable[PartitionRange], logs: Mapping[str, tuple[str | None, Mapping[int, LogBounds]]]
) -> tuple[tuple[PartitionRange, ...], list[str]]:
    """Return the parts of the ranges that the logs still have, and a sentence for each loss.

    Args:
        logs: For each topic, a pair: its present id (None if unknown), and the log bounds of each partition, by number.
    """
    left: list[PartitionRange] = []
    losses: list[str] = []
    for one in ranges:
        topic_id, partitions = logs[one.topic]
        bounds = partitions.get(one.partition)
        if not may_be_same(topic_id, one.topic_id):
            losses.append(f"{one}: topic {one.topic} was deleted and created again")
            continue
        if bounds is None:
            losses.append(f"{one}: the topic has no such partition")
            continue
        start, end = max(one.start, bounds.first), min(one.end, bounds.end)
        if gone := min(start, one.end) - one.start:
            losses.append(f"{one}: retention has deleted {gone} of {one.end - one.start} offsets")
        if bounds.end < one.end:
            losses.append(
                f"{one}: the log ends at {bounds.end}, so it lost its end (an unclean leader election?)"
            )
        if start < end:
            left.append(replace(one, start=start, end=end))
    return tuple(left), losses
