"""Where the reading of a newly assigned partition begins, on a cluster that answers as the test says."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pytest
from aiokafka import TopicPartition

from producers.kafka.positions.position import CommittedPosition
from producers.kafka.positions.start import Start
from producers.kafka.positions.starting_positions import StartingPositions
from producers.kafka.wire.cluster import Membership, TopicDescription

FIRST, END = 3, 90
ME = Membership(1, "me")


class Consumer:
    """Each log has the offsets from `FIRST` up to, but not including, `END`."""

    async def beginning_offsets(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, FIRST)

    async def end_offsets(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, END)


class Cluster:
    def __init__(self, committed: Mapping[TopicPartition, CommittedPosition]) -> None:
        self._committed = committed

    async def committed(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, CommittedPosition]:
        return self._committed

    def check_marks(self, positions: Iterable[CommittedPosition]) -> None:
        pass


class Commits:
    async def commit(self, *_: object) -> bool:
        return True


@pytest.mark.parametrize(
    ("counts", "offset"),
    [
        ([4, 4, 4, 4, None, None], FIRST),
        # Another member has partition 4, and was the first to commit.
        ([4, 4, 4, 4, 6, None], FIRST),
        # The topic had six partitions when the group started. The commit of partition 5 is missing.
        ([6, 6, 6, 6, 6, None], END),
        ([None] * 6, END),
    ],
    ids=["added", "added with another", "not added", "first start"],
)
async def test_a_partition_added_later_is_read_from_its_beginning_with_start_latest(
    counts: list[int | None], offset: int
) -> None:
    committed = {
        TopicPartition("t", number): CommittedPosition(50, partitions=count)
        for number, count in enumerate(counts)
        if count is not None
    }
    consumer: Any = Consumer()
    cluster: Any = Cluster(committed)
    commits: Any = Commits()
    starting = StartingPositions(consumer, cluster, commits, Start(latest=True), finds_topics=False)
    mine = TopicPartition("t", 5)
    found = await starting.find([mine], ME, {"t": TopicDescription("t", None, 6)})
    assert found == {mine: CommittedPosition(offset, partitions=6)}
