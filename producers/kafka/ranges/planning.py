"""Decides which ranges are new. Synchronous, without I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from producers.kafka.ranges.bookmark import Cut, PartitionBookmark, RangeBookmark, is_same


@dataclass(frozen=True, slots=True)
class PartitionView:
    """A partition's log as the brokers show it.

    Attributes:
        first: The oldest offset that is left.
        end: The offset after the last message that a reader with the connection's isolation level gets.
        epoch: The epoch of the leader that answered. None: unknown.
        start: Where the watcher begins if its bookmark has no entry for the topic.
        cut_at: The first offset that a cut took from the log after the bookmark was stored. None: no cut is known.
    """

    topic: str
    topic_id: str | None
    partition: int
    first: int
    end: int
    epoch: int | None = None
    start: int = 0
    cut_at: int | None = None

    @property
    def name(self) -> str:
        return f"{self.topic}[{self.partition}]"


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """New offsets of one partition: from `start` up to, but not including, `end`.

    Attributes:
        deleted: The number of offsets before `start` that retention deleted before any event had them.
        rewound_from: Set only in the first range after a cut. Earlier events contain the offsets from `start` up to,
            but not including, `rewound_from`. The messages of these events are lost.
        cut: How many times the partition's log was cut, if earlier events may contain these offsets; otherwise 0.
    """

    topic: str
    topic_id: str | None
    partition: int
    start: int
    end: int
    deleted: int = 0
    rewound_from: int | None = None
    cut: int = 0

    @property
    def key(self) -> str:
        """The idempotency key: `<topic>@<topic id>/<partition>/<first offset>`.

        The topic id is empty if the brokers have no topic ids. For offsets used again, the key ends with `#` and the
        cut's number.
        """
        key = f"{self.topic}@{self.topic_id or ''}/{self.partition}/{self.start}"
        return f"{key}#{self.cut}" if self.cut else key

    @property
    def extra(self) -> dict[str, Any]:
        """The `extra` of the asset event."""
        extra: dict[str, Any] = {
            "topic": self.topic,
            "topic_id": self.topic_id,
            "partition": self.partition,
            "from": self.start,
            "to": self.end,
        }
        if self.deleted:
            extra["deleted"] = self.deleted
        if self.rewound_from is not None:
            extra["rewound_from"] = self.rewound_from
        return extra


@dataclass(frozen=True, slots=True)
class Plan:
    """The next ranges, and the bookmark after them.

    Attributes:
        is_complete: Whether the ranges reach the end of every partition.
        warnings: Sentences for operators, without the full stop.
    """

    ranges: Sequence[OffsetRange]
    bookmark: RangeBookmark
    is_complete: bool
    warnings: Sequence[str]


def plan(
    bookmark: RangeBookmark,
    views: Sequence[PartitionView],
    *,
    max_offsets: int | None = None,
    most_ranges: int = 500,
) -> Plan:
    """Return the ranges of offsets that the bookmark does not cover yet.

    Args:
        max_offsets: The most offsets of one range. None: a range reaches to the partition's end.
        most_ranges: The most ranges of one plan. The partitions take turns, one range at a time.
    """
    warnings: list[str] = []
    after = replace(bookmark, has_begun=True)
    waiting: deque[Iterator[tuple[OffsetRange, PartitionBookmark, PartitionView]]] = deque()
    for view in views:
        current, deleted = _resume_at(bookmark, view, warnings)
        if current != bookmark.of_partition(view.topic, view.topic_id, view.partition):
            # Store the partition's bookmark even if there is no new range: a cut, a new partition or another leader
            # must not be forgotten.
            after = after.with_partition(view.topic, view.topic_id, view.partition, current)
        waiting.append(_ranges(view, current, deleted, max_offsets))
    ranges: list[OffsetRange] = []
    while waiting and len(ranges) < most_ranges:
        following = waiting.popleft()
        if (found := next(following, None)) is not None:
            made, current, view = found
            ranges.append(made)
            after = after.with_partition(view.topic, view.topic_id, view.partition, current)
            waiting.append(following)
    is_complete = all(next(rest, None) is None for rest in waiting)
    return Plan(ranges, after, is_complete, warnings)


def _resume_at(
    bookmark: RangeBookmark, view: PartitionView, warnings: list[str]
) -> tuple[PartitionBookmark, int]:
    """Return the partition's bookmark, and the number of offsets after it that retention has deleted.

    If the log was cut before the stored bookmark, the returned bookmark is at the cut.
    """
    current = bookmark.of_partition(view.topic, view.topic_id, view.partition)
    if current is None:
        return _new_partition(bookmark, view, warnings), 0
    if view.cut_at is not None and view.cut_at < current.to:
        warnings.append(
            f"{view.name}: the log was cut at {view.cut_at} (an unclean leader election?): the messages of"
            f" {current.to - view.cut_at} offsets before {current.to} are lost, and the offsets are used again"
        )
        before = current.cut
        cut = Cut(
            1 if before is None else before.number + 1,
            current.to if before is None else max(current.to, before.below),
            False,
        )
        current = PartitionBookmark(view.cut_at, view.epoch, cut)
    elif view.epoch is not None:
        current = replace(current, epoch=view.epoch)
    deleted = max(view.first - current.to, 0)
    if deleted and view.end > view.first:
        warnings.append(
            f"{view.name}: retention has deleted the {deleted} offsets {current.to} to {view.first - 1} before they"
            " were in an event; the next range begins at the oldest message that is left"
        )
    return current, deleted


def _new_partition(
    bookmark: RangeBookmark, view: PartitionView, warnings: list[str]
) -> PartitionBookmark:
    if not bookmark.knows(view.topic):
        return PartitionBookmark(view.start, view.epoch)
    found = bookmark.topics[view.topic]
    if not is_same(found.topic_id, view.topic_id) and view.partition == 0:
        warnings.append(
            f"topic {view.topic} was deleted and created again: the new topic is read from its beginning"
        )
    # The partition, or the topic, is newer than the bookmark. Begin at its first offset: `start="latest"` would lose
    # messages that were written before this look-up.
    return PartitionBookmark(view.first, view.epoch)


def _ranges(
    view: PartitionView, current: PartitionBookmark, deleted: int, max_offsets: int | None
) -> Iterator[tuple[OffsetRange, PartitionBookmark, PartitionView]]:
    """Yield the ranges of one partition up to its end, each with the partition's bookmark after it."""
    at, cut = max(current.to, view.first), current.cut
    while at < view.end:
        end = view.end if max_offsets is None else min(at + max_offsets, view.end)
        is_used_again = cut is not None and at < cut.below
        unreported = cut if cut is not None and not cut.is_reported else None
        made = OffsetRange(
            view.topic,
            view.topic_id,
            view.partition,
            at,
            end,
            deleted,
            None if unreported is None else unreported.below,
            cut.number if cut is not None and is_used_again else 0,
        )
        cut = None if cut is None else cut._replace(is_reported=True)
        yield made, PartitionBookmark(end, current.epoch, cut), view
        at, deleted = end, 0
