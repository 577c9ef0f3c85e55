"""Looks up the ends of partitions, without reading a message and without a consumer group."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
from aiokafka import AIOKafkaConsumer, TopicPartition

from producers.kafka.connection.connecting import connect, stop_consumer
from producers.kafka.connection.topics import Topics
from producers.kafka.errors import guarded
from producers.kafka.positions.start import Start
from producers.kafka.ranges.bookmark import RangeBookmark
from producers.kafka.ranges.planning import PartitionView
from producers.kafka.wire.cluster import Cluster, TopicDescription
from triggerer.errors import BrokerUnavailable

if TYPE_CHECKING:
    from producers.kafka.settings import KafkaSettings

logger = logging.getLogger(__name__)


class LogEnds:
    """Looks up the oldest offset and the end of each partition of some topics, over one client.

    A look-up usually sends one metadata request (with a pattern, two), and two requests to each broker that leads a
    partition.

    Args:
        start: Where a watcher begins in a topic that is not in its bookmark, unless its pattern finds the topic later.
    Attributes:
        left_out: The partitions that the last look-up left out, because their topic or leader had changed.
    """

    def __init__(
        self, consumer: AIOKafkaConsumer, topics: Topics, settings: KafkaSettings, start: Start
    ) -> None:
        self._consumer = consumer
        self._topics = topics
        self._settings = settings
        self._start = start
        self._what = f"look-up of the ends of {topics} at {settings.bootstrap_servers}"
        self._cluster = Cluster(
            consumer,
            "",
            settings.bootstrap_servers,
            fetch_max_wait_ms=settings.fetch_max_wait_ms,
        )
        self.left_out: Sequence[TopicPartition] = ()
        self._described: Mapping[str, TopicDescription] = {}
        """The topics by name, as the last look-up found them."""

    async def look_up(self, bookmark: RangeBookmark) -> list[PartitionView]:
        """Return the partitions that are unchanged since the previous look-up.

        A new partition is left out once. A partition is also left out once if its topic was created again or its leader
        changed, because its offsets may be from another log than before. If such a partition begins at `start`, the
        look-up is repeated until the partition is unchanged.

        Raises:
            BrokerUnavailable: The cluster does not answer in time.
            BrokerRefused: A topic does not exist, or this user may not read it.
        """
        try:
            with anyio.fail_after(self._settings.request_timeout_ms / 1000):
                views = await self._look_up(bookmark)
                while any(self._begins_at_start(bookmark, one.topic) for one in self.left_out):
                    # After this look-up the bookmark has begun, and a partition that it left out would be read from its
                    # beginning, not from `start`. So look up again, until no such partition is left out.
                    views = await self._look_up(bookmark)
                return views
        except TimeoutError:
            raise BrokerUnavailable(f"{self._what}: no answer in time") from None

    async def _look_up(self, bookmark: RangeBookmark) -> list[PartitionView]:
        before = self._described or await self._describe()
        if not before:
            self.left_out = ()
            return []
        await self._cluster.know_leaders(list(before))
        partitions = [
            TopicPartition(topic.name, number)
            for topic in before.values()
            for number in range(topic.partitions)
        ]
        firsts: Any = await guarded(self._consumer.beginning_offsets(partitions), self._what)
        ends: Any = await guarded(self._consumer.end_offsets(partitions), self._what)
        starts = await self._find_starts(bookmark, partitions)
        after = self._described = await self._describe()
        steady = [one for one in partitions if _is_steady(one, before, after)]
        self.left_out = [one for one in partitions if not _is_steady(one, before, after)]
        cuts = await self._find_cuts(bookmark, steady, ends, after)
        return [
            PartitionView(
                one.topic,
                after[one.topic].topic_id,
                one.partition,
                firsts[one],
                ends[one],
                _epoch(one, after),
                starts.get(one, firsts[one]),
                cuts.get(one),
            )
            for one in steady
        ]

    async def _describe(self) -> Mapping[str, TopicDescription]:
        names = await self._topics.find(self._consumer, self._what)
        if not names:
            return {}
        return await self._cluster.describe(names, may_be_gone=self._topics.pattern is not None)

    async def _find_starts(
        self, bookmark: RangeBookmark, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        """Return the offset of `start` in each partition that begins there.

        A new partition that is not in the result is read from its oldest offset.
        """
        new = [one for one in partitions if self._begins_at_start(bookmark, one.topic)]
        return await self._start.find(self._consumer, new, self._what)

    def _begins_at_start(self, bookmark: RangeBookmark, topic: str) -> bool:
        """Return whether the partitions of a topic begin at `start`, and not at their oldest offset."""
        if self._start == Start():
            # `start` is "earliest", and the oldest offsets are looked up already.
            return False
        is_found_later = self._topics.pattern is not None and bookmark.has_begun
        return not (is_found_later or bookmark.knows(topic))

    async def _find_cuts(
        self,
        bookmark: RangeBookmark,
        partitions: Sequence[TopicPartition],
        ends: Mapping[TopicPartition, int],
        described: Mapping[str, TopicDescription],
    ) -> Mapping[TopicPartition, int]:
        """Return the partitions whose log was cut before the bookmark's offset, each with the offset of the cut."""
        cut: dict[TopicPartition, int] = {}
        asked: dict[TopicPartition, int] = {}
        for one in partitions:
            topic_id = described[one.topic].topic_id
            known = bookmark.of_partition(one.topic, topic_id, one.partition)
            if known is None:
                continue
            if known.epoch is not None and (
                known.epoch != _epoch(one, described) or ends[one] < known.to
            ):
                asked[one] = known.epoch
            elif ends[one] < known.to:
                cut[one] = ends[one]
        found = await self._cluster.epoch_ends(asked) if asked else {}
        for one in asked:
            known = bookmark.of_partition(one.topic, described[one.topic].topic_id, one.partition)
            assert known is not None
            # With "read_committed", `ends` may contain the start of an open transaction instead of the log's end. So
            # prefer the offset at which the bookmark's epoch ends in the log, if the broker returned this offset.
            end = found.get(one, ends[one])
            if end < known.to:
                cut[one] = end
        return cut


def _epoch(partition: TopicPartition, described: Mapping[str, TopicDescription]) -> int | None:
    epochs = described[partition.topic].epochs
    epoch = epochs[partition.partition] if partition.partition < len(epochs) else -1
    return epoch if epoch >= 0 else None


def _is_steady(
    partition: TopicPartition,
    before: Mapping[str, TopicDescription],
    after: Mapping[str, TopicDescription],
) -> bool:
    return (
        partition.topic in after
        and before[partition.topic].topic_id == after[partition.topic].topic_id
        and _epoch(partition, before) == _epoch(partition, after)
    )


@asynccontextmanager
async def open_log_ends(
    settings: KafkaSettings, topics: Sequence[str], start: Any
) -> AsyncIterator[LogEnds]:
    """Connect, and close the client at the end.

    Raises:
        BrokerUnavailable: No broker answers.
        BrokerRefused: A broker answers, and refuses the credentials or the protocol.
    """
    found = Topics.parse(topics, settings)
    what = f"look-up of the ends of {found} at {settings.bootstrap_servers}"
    consumer = AIOKafkaConsumer(**settings.reading_arguments())
    try:
        await connect(consumer, settings, what)
        yield LogEnds(consumer, found, settings, Start.parse(start))
    finally:
        await stop_consumer(consumer, what)
