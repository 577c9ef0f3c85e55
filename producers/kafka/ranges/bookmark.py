"""The bookmark of a watcher of ranges: the offset of each partition at which the next range begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

_VERSION = 1


class Cut(NamedTuple):
    """The last cut of a partition's log: the log lost its end, and uses the lost offsets again."""

    number: int
    """How many times the log was cut. The number is in the keys of ranges whose offsets are used again."""
    below: int
    """Earlier events may have offsets below this one, for messages that are lost."""
    is_told: bool
    """Whether an event has reported the cut, as `rewound_from`."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the next range of a partition begins.

    Attributes:
        to: The first offset that is in no event.
        epoch: The epoch of the leader whose log ended at `to` or later. None: unknown.
        cut: The last cut of the log. None: it was never cut.
    """

    to: int
    epoch: int | None = None
    cut: Cut | None = None


@dataclass(frozen=True, slots=True)
class TopicPlaces:
    """The places of one topic, by partition. `topic_id` is None if the brokers have no topic ids."""

    topic_id: str | None
    places: Mapping[int, Place] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RangeBookmark:
    """The places by topic. A topic that is no longer watched keeps its places."""

    topics: Mapping[str, TopicPlaces] = field(default_factory=dict)

    def place(self, topic: str, topic_id: str | None, partition: int) -> Place | None:
        """Return a partition's place.

        Return None if no event has an offset of the partition, or if the bookmark is of a deleted topic of the same
        name.
        """
        found = self.topics.get(topic)
        if found is None or not is_same(found.topic_id, topic_id):
            return None
        return found.places.get(partition)

    def knows(self, topic: str) -> bool:
        """Return whether the topic, or a deleted topic of the same name, has places."""
        return topic in self.topics

    def moved(self, topic: str, topic_id: str | None, partition: int, place: Place) -> Self:
        """Return the bookmark with another place. The places of a deleted topic of the same name are dropped."""
        before = self.topics.get(topic)
        if before is None or not is_same(before.topic_id, topic_id):
            before = TopicPlaces(topic_id)
        places = {**before.places, partition: place}
        after = TopicPlaces(topic_id or before.topic_id, places)
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
        return cls({name: _topic_from(found) for name, found in value["topics"].items()})

    def to_json(self) -> dict[str, Any]:
        """Return the bookmark as JSON, about ten bytes for each partition."""
        return {"v": _VERSION, "topics": {n: _topic_json(t) for n, t in self.topics.items()}}


def is_same(one: str | None, other: str | None) -> bool:
    """Return whether two ids of a name may belong to one topic: they are equal, or one of them is unknown."""
    return one == other or None in (one, other)


def _topic_json(topic: TopicPlaces) -> dict[str, Any]:
    count = max(topic.places, default=-1) + 1
    listed = [topic.places.get(number) for number in range(count)]
    cuts = {str(n): list(p.cut) for n, p in topic.places.items() if p.cut is not None}
    return {
        "id": topic.topic_id,
        "to": [None if place is None else place.to for place in listed],
        "epochs": [None if place is None else place.epoch for place in listed],
        **({"cuts": cuts} if cuts else {}),
    }


def _topic_from(value: Any) -> TopicPlaces:
    cuts = {int(number): Cut(*cut) for number, cut in value.get("cuts", {}).items()}
    places = {
        number: Place(to, epoch, cuts.get(number))
        for number, (to, epoch) in enumerate(zip(value["to"], value["epochs"], strict=True))
        if to is not None
    }
    return TopicPlaces(value["id"], places)
