"""The state after partitions come and go, without a broker."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka import TopicPartition

from producers.kafka.assignment import Assignment
from producers.kafka.in_flight import LaneInFlight
from producers.kafka.positions.position import CommittedPosition
from producers.kafka.positions.start import Start
from producers.kafka.positions.starting_positions import names_of
from producers.kafka.wire.cluster import Membership

PARTITION = TopicPartition("t", 0)
ME = Membership(1, "me")


class Consumer:
    """A consumer with one partition that obeys the test."""

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


def assignment_of(cluster: Any) -> Assignment:
    consumer: Any = Consumer()
    commits: Any = None
    return Assignment(
        consumer,
        cluster,
        commits,
        start=Start(),
        expired_offset="earliest",
        finds_topics=False,
        positions_timeout_s=1,
        revoke_timeout_s=1,
        idle_wait_ms=2500,
    )


async def test_requests_wait_long_again_when_a_partition_goes_that_was_held() -> None:
    cluster = Cluster()
    assignment = assignment_of(cluster)
    lane = assignment.lanes[PARTITION] = LaneInFlight(PARTITION, ME, CommittedPosition(0))
    assignment.redeliver_after(lane, CommittedPosition(0, failures=1), 60.0)
    assert not cluster.waits_long
    await assignment.on_partitions_revoked([PARTITION])
    assert cluster.waits_long


async def test_a_broker_may_hold_a_fetch_back_for_longer_once_nothing_has_come_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr("anyio.current_time", lambda: now)
    assignment = assignment_of(Cluster())
    lane = assignment.lanes[PARTITION] = LaneInFlight(PARTITION, ME, CommittedPosition(0))

    def wait_after(seconds: float) -> int:
        nonlocal now
        now += seconds
        return assignment.fetch_wait_ms(500)

    assert [wait_after(one) for one in (0, 9, 2, 100)] == [500, 500, 2500, 2500]
    lane.delivered = 1
    assert [wait_after(one) for one in (0, 100)] == [500, 500], "it is in flight, and may fail"
    lane.committed = CommittedPosition(1)
    assert [wait_after(one) for one in (9, 2)] == [500, 2500]
    lane.paused = True
    assert [wait_after(one) for one in (0, 100)] == [500, 500], (
        "when the pause ends, it must be fetched at once"
    )
    lane.paused = False
    assert [wait_after(one) for one in (9, 2)] == [500, 2500]
    lane.delivered, lane.committed = 2, CommittedPosition(2)
    assert [wait_after(one) for one in (0, 9, 2)] == [500, 500, 2500], "a message came and went"
    assignment.redeliver_after(lane, CommittedPosition(0, failures=1), 60.0)
    assert [wait_after(one) for one in (0, 100)] == [500, 500]
    lane.close()


def test_partitions_are_named_where_they_are_few_and_counted_where_they_are_many() -> None:
    assert names_of([]) == "no partitions"
    assert names_of([TopicPartition("b", 1), TopicPartition("a", 10)]) == "a[10], b[1]"
    many = [TopicPartition(topic, number) for topic in ("b", "a") for number in range(100)]
    assert names_of(many) == "200 partitions of a, b"
    more = [TopicPartition(f"t{number}", 0) for number in range(50)]
    assert names_of(more) == "50 partitions of 50 topics"
