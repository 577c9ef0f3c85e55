"""Where the reading of a newly assigned partition begins, on a cluster that answers as the test says."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from aiokafka import TopicPartition

from producers.kafka.positions.position import CommittedPosition
from producers.kafka.positions.start import Start
from producers.kafka.positions.starting_positions import StartingPositions
from producers.kafka.wire.cluster import Membership, TopicDescription

FIRST, END = 3, 90
NOW = datetime(2026, 11, 29, tzinfo=UTC)
STOPPED = NOW - timedelta(days=8)
MINE = TopicPartition("t", 5)
TOPICS = {"t": TopicDescription("t", None, 6)}
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
    """Knows when the stream was last read. Once the marks are checked, the service renews the mark."""

    def __init__(
        self,
        committed: Mapping[TopicPartition, CommittedPosition],
        last_read_at: datetime | None = None,
    ) -> None:
        self._committed = committed
        self.last_read_at = last_read_at

    async def committed(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, CommittedPosition]:
        return self._committed

    def check_marks(self, positions: Iterable[CommittedPosition]) -> None:
        self.last_read_at = NOW


class Commits:
    async def commit(self, *_: object) -> bool:
        return True


def starting_on(cluster: Any, start: Start) -> StartingPositions:
    consumer: Any = Consumer()
    commits: Any = Commits()
    return StartingPositions(consumer, cluster, commits, start, finds_topics=False)


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
    starting = starting_on(Cluster(committed), Start(latest=True))
    found = await starting.find([MINE], ME, TOPICS)
    assert found == {MINE: CommittedPosition(offset, partitions=6)}


@pytest.mark.parametrize(
    ("start", "offset"),
    [
        (Start(latest=True), END),
        (Start(), FIRST),
        (Start(offsets={"t": {5: 50}}), 50),
    ],
    ids=["latest", "earliest", "offsets"],
)
async def test_a_stream_that_lost_its_commits_warns_and_begins_at_its_start(
    start: Start, offset: int, caplog: pytest.LogCaptureFixture
) -> None:
    found = await starting_on(Cluster({}, STOPPED), start).find([MINE], ME, TOPICS)
    assert found[MINE].offset == offset
    (warning,) = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert "t[5]" in warning
    assert "2026-11-21T00:00:00Z" in warning
    assert "offsets.retention.minutes" in warning
    assert "watchers replay --from 2026-11-21T00:00:00Z" in warning


async def test_a_stream_that_begins_warns_of_nothing(caplog: pytest.LogCaptureFixture) -> None:
    found = await starting_on(Cluster({}), Start(latest=True)).find([MINE], ME, TOPICS)
    assert found[MINE].offset == END
    assert caplog.text == ""
