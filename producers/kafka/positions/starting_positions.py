"""Finds the position of each newly assigned partition: the group's commit, or the start."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Final

import anyio
from aiokafka import AIOKafkaConsumer, TopicPartition

from producers.kafka.positions.commits import Commits
from producers.kafka.positions.position import CommittedPosition
from producers.kafka.positions.start import Start
from producers.kafka.wire.cluster import Cluster, Membership, TopicDescription

logger = logging.getLogger(__name__)

_FEW: Final = 10
"""A log line or an error names up to this many partitions or topics. More of them are only counted."""


class StartingPositions:
    """Finds the starting positions of one stream.

    Args:
        finds_topics: True if the stream reads a pattern. A matching topic that appears after the group has started is
            then read from its beginning.

    Attributes:
        has_started: Whether this consumer has had an assignment, even an empty one.
    """

    def __init__(
        self,
        consumer: AIOKafkaConsumer,
        cluster: Cluster,
        commits: Commits,
        start: Start,
        *,
        finds_topics: bool,
    ) -> None:
        self.has_started = False
        self._consumer = consumer
        self._cluster = cluster
        self._commits = commits
        self._start = start
        self._finds_topics = finds_topics

    async def find(
        self,
        assigned: Collection[TopicPartition],
        membership: Membership,
        topics: Mapping[str, TopicDescription],
    ) -> dict[TopicPartition, CommittedPosition]:
        """Return the position of each partition.

        Args:
            topics: The topics of the assigned partitions, as the cluster has them now, by name.
        Raises:
            BrokerUnavailable, BrokerRefused: From the brokers.
            StoreRestored: A commit is newer than the database.
        """
        # Ask for the commits of all partitions of these topics. The start of a new partition depends on whether the
        # group has commits for other partitions of the topic.
        committed = await self._cluster.committed(
            [
                TopicPartition(topic.name, number)
                for topic in topics.values()
                for number in range(topic.partitions)
            ]
        )
        positions = {
            partition: position
            for partition in assigned
            if (position := committed.get(partition)) is not None
            and self._is_same_topic(partition, position, topics[partition.topic])
        }
        # Ask before the check of the marks, because after it the stream counts as read.
        last_read_at = self._cluster.last_read_at
        self._cluster.check_marks(positions.values())
        if missing := [partition for partition in assigned if partition not in positions]:
            positions |= await self._first_positions(
                missing, membership, committed, topics, last_read_at
            )
        return {
            partition: _with_topic(position, topics[partition.topic])
            for partition, position in positions.items()
        }

    @staticmethod
    def _is_same_topic(
        partition: TopicPartition, position: CommittedPosition, topic: TopicDescription
    ) -> bool:
        topic_id = topic.topic_id
        if None in (topic_id, position.topic_id) or topic_id == position.topic_id:
            return True
        logger.error(
            "topic %s was deleted and created again: the commit at %s offset %d belongs to its predecessor; "
            "the partition is read from its beginning",
            partition.topic,
            partition,
            position.offset,
        )
        return False

    def _warn_of_lost_commits(
        self, partitions: Collection[TopicPartition], last_read_at: datetime
    ) -> None:
        logger.warning(
            "%s: the group has no commit, although the stream was read until %s; reading begins at its start, %s. Kafka"
            " deletes the commits of a group without consumers after offsets.retention.minutes. Messages that `start`"
            " skips can be read with: triggerer watchers replay --from %s (or earlier, if the stream was behind then)",
            names_of(partitions),
            Start(time=last_read_at).to_json(),
            self._start.to_json(),
            Start(time=last_read_at).to_json(),
        )

    async def _first_positions(
        self,
        missing: Collection[TopicPartition],
        membership: Membership,
        committed: Mapping[TopicPartition, CommittedPosition],
        topics: Mapping[str, TopicDescription],
        last_read_at: datetime | None,
    ) -> dict[TopicPartition, CommittedPosition]:
        """Find and commit first positions for partitions without a usable commit, so that a restart skips nothing."""
        new = [
            partition
            for partition in missing
            # Read these partitions from their beginning: the commit belongs to a deleted topic of the same name, or the
            # partition was added after the group had begun to read.
            if partition in committed
            or is_new(
                partition,
                committed,
                finds_topics=self._finds_topics,
                has_started=self.has_started,
            )
        ]
        old = [partition for partition in missing if partition not in new]
        what = f"look-up of the first offsets of {names_of(missing)}"
        offsets = await Start().find(self._consumer, new, what)
        offsets |= await self._start.find(self._consumer, old, what)
        if old and last_read_at is not None:
            self._warn_of_lost_commits(old, last_read_at)
        positions = {
            partition: CommittedPosition(
                offset,
                topic_id=topics[partition.topic].topic_id,
                partitions=topics[partition.topic].partitions,
            )
            for partition, offset in offsets.items()
        }
        async with anyio.create_task_group() as tg:
            for partition, position in positions.items():
                tg.start_soon(self._commits.commit, partition, membership, position)
        return positions


def is_new(
    partition: TopicPartition,
    committed: Mapping[TopicPartition, CommittedPosition],
    *,
    finds_topics: bool,
    has_started: bool = False,
) -> bool:
    """Whether the group read the topic, or other topics of the pattern, before this partition was added.

    A new partition without a commit is read from its beginning, and not from `start`.

    Args:
        committed: The group's commits for the topics that the stream reads.
        finds_topics: True if the stream reads a pattern.
        has_started: Whether the stream has had an assignment.
    """
    if finds_topics and not any(place.topic == partition.topic for place in committed):
        return has_started or bool(committed)
    known = [
        position.partitions
        for other, position in committed.items()
        if other.topic == partition.topic and position.partitions is not None
    ]
    # Each commit contains the number of partitions that its topic had. Another member may have
    # committed a new partition already, with the new number. So compare with the lowest number.
    return bool(known) and partition.partition >= min(known)


def _with_topic(position: CommittedPosition, topic: TopicDescription) -> CommittedPosition:
    return replace(
        position,
        topic_id=topic.topic_id,
        # Another program's commit does not contain the number of partitions. Assume that no partition was added after
        # that commit.
        partitions=position.partitions or topic.partitions,
        mark=None,
    )


def names_of(partitions: Collection[TopicPartition]) -> str:
    """Return the names of partitions for a log line or an error. If there are many, return their number and topics."""
    if len(partitions) <= _FEW:
        names = (f"{topic}[{number}]" for topic, number in sorted(partitions))
        return ", ".join(names) or "no partitions"
    topics = sorted({partition.topic for partition in partitions})
    of = ", ".join(topics) if len(topics) <= _FEW else f"{len(topics)} topics"
    return f"{len(partitions)} partitions of {of}"
