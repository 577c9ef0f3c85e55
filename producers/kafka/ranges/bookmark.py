"""The bookmark of a `KafkaRangeTrigger`: for each partition, the offset at which the next range begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

_VERSION = 1


class Cut(NamedTuple):
    """The last cut of a partition's log: the log lost its end, and uses the lost offsets again."""

    number: int
    """How many times the log was cut. If an event has offsets that are used again, its key contains this number."""
    below: int
    """Earlier events may contain lost offsets up to, but not including, this one."""
    is_reported: bool
    """Whether an event has reported the cut, as `rewound_from`."""


@dataclass(frozen=True, slots=True)
class PartitionBookmark:
    """Where the next range of a partition begins.

    Attributes:
        to: The offset after the last range. After a cut: the offset of the cut. Before the first range: where to begin.
        epoch: The epoch of a leader whose log had all offsets before `to`. None: unknown.
        cut: The last cut of the log. None: it was never cut.
    """

    to: int
    epoch: int | None = None
    cut: Cut | None = None


@dataclass(frozen=True, slots=True)
class TopicBookmark:
    """The bookmarks of one topic, by partition. `topic_id` is None if the brokers have no topic ids."""

    topic_id: str | None
    partitions: Mapping[int, PartitionBookmark] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RangeBookmark:
    """The bookmarks by topic. A topic that is no longer watched keeps its bookmarks.

    Attributes:
        has_begun: Whether the watcher has looked up its topics. A topic that its pattern finds later is read from its
            beginning. Every stored bookmark has begun, even if no topic matched the pattern.
    """

    topics: Mapping[str, TopicBookmark] = field(default_factory=dict)
    has_begun: bool = False

    def of_partition(
        self, topic: str, topic_id: str | None, number: int
    ) -> PartitionBookmark | None:
        """Return a partition's bookmark. None: no bookmark is stored, or only one of a deleted topic of this name."""
        found = self.topics.get(topic)
        if found is None or not is_same(found.topic_id, topic_id):
            return None
        return found.partitions.get(number)

    def knows(self, topic: str) -> bool:
        """Return whether the topic, or a deleted topic of the same name, has bookmarks."""
        return topic in self.topics

    def with_partition(
        self, topic: str, topic_id: str | None, number: int, bookmark: PartitionBookmark
    ) -> Self:
        """Return a copy with another bookmark for a partition.

        The bookmarks of a deleted topic of the same name are dropped.
        """
        before = self.topics.get(topic)
        if before is None or not is_same(before.topic_id, topic_id):
            before = TopicBookmark(topic_id)
        partitions = {**before.partitions, number: bookmark}
        after = TopicBookmark(topic_id or before.topic_id, partitions)
        return replace(self, topics={**self.topics, topic: after})

    @classmethod
    def parse(cls, value: Any) -> Self:
        """Read what `to_json` wrote.

        Raises:
            ValueError: A later version wrote it.
        """
        if value is None:
            return cls()
        if value["v"] != _VERSION:
            raise ValueError(
                f"the bookmark has version {value['v']}, which this release does not know"
            )
        topics = {name: _topic_from(found) for name, found in value["topics"].items()}
        return cls(topics, has_begun=True)

    def to_json(self) -> dict[str, Any]:
        """Return the bookmark as JSON, about ten bytes for each partition."""
        return {"v": _VERSION, "topics": {n: _topic_json(t) for n, t in self.topics.items()}}


def is_same(one: str | None, other: str | None) -> bool:
    """Whether two topics of one name can be the same topic: their ids are equal, or an id is unknown (None)."""
    return one == other or None in (one, other)


def _topic_json(topic: TopicBookmark) -> dict[str, Any]:
    count = max(topic.partitions, default=-1) + 1
    listed = [topic.partitions.get(number) for number in range(count)]
    cuts = {str(n): list(p.cut) for n, p in topic.partitions.items() if p.cut is not None}
    return {
        "id": topic.topic_id,
        "to": [None if one is None else one.to for one in listed],
        "epochs": [None if one is None else one.epoch for one in listed],
        **({"cuts": cuts} if cuts else {}),
    }


def _topic_from(value: Any) -> TopicBookmark:
    cuts = {int(number): Cut(*cut) for number, cut in value.get("cuts", {}).items()}
    partitions = {
        number: PartitionBookmark(to, epoch, cuts.get(number))
        for number, (to, epoch) in enumerate(zip(value["to"], value["epochs"], strict=True))
        if to is not None
    }
    return TopicBookmark(value["id"], partitions)
