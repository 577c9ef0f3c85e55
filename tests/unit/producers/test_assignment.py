"""What partitions that come and go leave behind, without a broker."""

from __future__ import annotations

from typing import Any

from aiokafka import TopicPartition

from producers.kafka.assignment import Assignment
from producers.kafka.cluster import Membership
from producers.kafka.lane import Lane
from producers.kafka.position import CommittedPosition
from producers.kafka.start import Start
from producers.kafka.starting_positions import names_of

PARTITION = TopicPartition("t", 0)
ME = Membership(1, "me")


class Consumer:
    """Has one partition, and does what it is told."""

    def assignment(self) -> set[TopicPartition]:
        return {PARTITION}

    def pause(self, partition: TopicPartition) -> None:
        pass

    def seek(self, partition: TopicPartition, offset: int) -> None:
        pass


class Cluster:
    def __init__(self) -> None:
        self.waits_long = True

    def membership(self) -> Membership:
        return ME

    def wait_long(self, is_long: bool) -> None:
        self.waits_long = is_long


async def test_requests_wait_long_again_when_a_partition_goes_that_was_held() -> None:
    cluster: Any = Cluster()
    consumer: Any = Consumer()
    commits: Any = None
    assignment = Assignment(
        consumer,
        cluster,
        commits,
        start=Start(),
        expired_offset="earliest",
        finds_topics=False,
        settle_timeout_s=1,
        revoke_timeout_s=1,
    )
    lane = assignment.lanes[PARTITION] = Lane(PARTITION, ME, CommittedPosition(0))
    assignment.hold(lane, CommittedPosition(0, failures=1), 60.0)
    assert not cluster.waits_long
    await assignment.on_partitions_revoked([PARTITION])
    assert cluster.waits_long


def test_partitions_are_named_where_they_are_few_and_counted_where_they_are_many() -> None:
    assert names_of([]) == "no partitions"
    assert names_of([TopicPartition("b", 1), TopicPartition("a", 10)]) == "a[10], b[1]"
    many = [TopicPartition(topic, number) for topic in ("b", "a") for number in range(100)]
    assert names_of(many) == "200 partitions of a, b"
    more = [TopicPartition(f"t{number}", 0) for number in range(50)]
    assert names_of(more) == "50 partitions of 50 topics"
