"""A lane that is reset while the advance of its messages waits, without a broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from aiokafka import TopicPartition

from producers.kafka.in_flight import LaneInFlight
from producers.kafka.message import KafkaMessage
from producers.kafka.positions.position import CommittedPosition
from producers.kafka.settings import KafkaSettings
from producers.kafka.settle import Settler
from producers.kafka.wire.cluster import Membership
from tests.unit.producers.test_assignment import Cluster, assignment_of
from tests.unit.producers.test_kafka_in_flight import Record
from triggerer.abc import AdvanceItem, AdvanceOutcome

REJECTED = AdvanceOutcome(acked=0, failed=0, rejected=1)
FAILED = AdvanceOutcome(acked=0, failed=1, rejected=0)
NEW_POSITION = 100


class Commits:
    """Records what is committed. The lane may be reset during a commit."""

    def __init__(self, during: Callable[[], None] = lambda: None) -> None:
        self.offsets: list[int] = []
        self._during = during

    async def commit(
        self, partition: TopicPartition, membership: Membership, position: CommittedPosition
    ) -> bool:
        self.offsets.append(position.offset)
        self._during()
        return True


class DeadLetters:
    """Accepts each message. The lane may be reset while a message is written."""

    def __init__(self, during: Callable[[], None]) -> None:
        self.offsets: list[int] = []
        self._during = during

    def has_topic_for(self, topic: str) -> bool:
        return True

    async def write(self, message: KafkaMessage, evidence: object) -> None:
        self.offsets.append(message.offset)
        self._during()


def made_lane() -> LaneInFlight:
    lane = LaneInFlight(TopicPartition("t", 0), Membership(1, "me"), CommittedPosition(7))
    lane.delivered = 8
    return lane


def settler_of(commits: Any, dead_letters: Any) -> Settler:
    settings = KafkaSettings(bootstrap_servers="localhost:9092", max_deliveries=1)
    return Settler(assignment_of(Cluster()), commits, dead_letters, settings)


def reset(lane: LaneInFlight) -> None:
    """Continue at another position, as `Assignment.reset_out_of_range` does after retention."""
    lane.step_back(CommittedPosition(NEW_POSITION), retries_alone=False)


@pytest.mark.parametrize("outcome", [REJECTED, FAILED])
async def test_a_lane_that_is_reset_while_a_dead_letter_is_written_keeps_its_new_position(
    outcome: AdvanceOutcome,
) -> None:
    lane = made_lane()
    commits, dead_letters = Commits(), DeadLetters(lambda: reset(lane))
    message = KafkaMessage(Record(7), lane, lane.delivery)
    await settler_of(commits, dead_letters).advance([AdvanceItem(message, outcome)])
    assert dead_letters.offsets == [7]
    assert commits.offsets == [], "the old position is committed over the new one"
    assert lane.committed.offset == lane.delivered == NEW_POSITION


async def test_a_lane_that_is_reset_during_a_commit_keeps_its_new_position() -> None:
    lane = made_lane()
    commits = Commits(lambda: reset(lane))
    message = KafkaMessage(Record(7), lane, lane.delivery)
    await settler_of(commits, DeadLetters(lambda: None)).advance([AdvanceItem(message, REJECTED)])
    assert lane.committed.offset == lane.delivered == NEW_POSITION
