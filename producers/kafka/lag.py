"""Measures a group's consumer lag without joining the group; for `triggerer watchers … --lag`."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import anyio
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka import errors as sdk
from aiokafka.admin import AIOKafkaAdminClient

from producers.kafka.connection.connecting import stop_consumer
from producers.kafka.connection.topics import Topics
from producers.kafka.errors import guarded
from producers.kafka.positions.position import CommittedPosition
from producers.kafka.positions.start import Start
from producers.kafka.positions.starting_positions import is_new
from producers.kafka.wire.cluster import Cluster
from triggerer.abc import SourceLag
from triggerer.errors import BrokerError, BrokerUnavailable

if TYPE_CHECKING:
    from producers.kafka.settings import KafkaSettings

_CLOSE_TIMEOUT_S: Final = 2.0
_ASK_AGAIN_S: Final = 0.2
_MOVING: Final = (
    sdk.GroupCoordinatorNotAvailableError,
    sdk.GroupLoadInProgressError,
    sdk.NotCoordinatorForGroupError,
)


async def measure_lag(
    settings: KafkaSettings, topics: Iterable[str], group: str, start: Any
) -> SourceLag:
    """Return the consumer lag of each partition: the number of offsets from the group's commit to the end of the log.

    - A partition without a commit counts from where the stream would begin to read it: from its oldest message if it is
      new (see `is_new`), otherwise from `start`.
    - Aborted messages and control records count too.

    The caller sets a deadline.

    Raises:
        ConfigurationError: A certificate or key cannot be read.
        BrokerRefused, BrokerUnavailable: From the brokers.
    """
    what = f"lag of group {group} at {settings.bootstrap_servers}"
    consumer = AIOKafkaConsumer(**settings.reading_arguments())
    try:
        await guarded(consumer.start(), what)
        chosen = Topics.parse(topics, settings)
        names = await chosen.find(consumer, what)
        # Do not use `admin.describe_topics`: with `auto.create.topics.enable`, its request creates a missing topic.
        cluster = Cluster(consumer, group, settings.bootstrap_servers, fetch_max_wait_ms=0)
        described = await cluster.describe(names, may_be_gone=True) if names else {}
        partitions = [
            TopicPartition(topic.name, number)
            for topic in described.values()
            for number in range(topic.partitions)
        ]
        if not partitions:
            return SourceLag(None, note=f"there is no topic {', '.join(topics)}")
        commits = await _committed(settings, group, what)
        committed = {
            one: CommittedPosition.parse(commit.offset, commit.metadata)
            for one in partitions
            if (commit := commits.get(one)) is not None and commit.offset >= 0
        }
        finds_topics = chosen.pattern is not None
        new, old = list[TopicPartition](), list[TopicPartition]()
        for one in partitions:
            if one not in committed:
                (new if is_new(one, committed, finds_topics=finds_topics) else old).append(one)
        places = {one: position.offset for one, position in committed.items()}
        places |= await Start().find(consumer, new, what)
        places |= await Start.parse(start).find(consumer, old, what)
        ends: Any = await guarded(consumer.end_offsets(partitions), what)
    finally:
        await stop_consumer(consumer, what)
    by_lane = {
        f"{one.topic}[{one.partition}]": max(ends[one] - places[one], 0)
        for one in sorted(partitions)
    }
    return SourceLag(sum(by_lane.values()), by_lane)


async def _committed(settings: KafkaSettings, group: str, what: str) -> Any:
    """Return the group's commits by partition. An offset below 0 means that the partition has no commit."""
    admin = AIOKafkaAdminClient(**settings.client_arguments())
    try:
        await guarded(admin.start(), what)
        while True:
            try:
                return await guarded(admin.list_consumer_group_offsets(group), what)
            except BrokerUnavailable as error:
                # Ask again while the group's coordinator moves to another broker, or while a new cluster creates the
                # coordinator.
                if not isinstance(error.__cause__, _MOVING):
                    raise
                await anyio.sleep(_ASK_AGAIN_S)
    finally:
        with anyio.move_on_after(_CLOSE_TIMEOUT_S, shield=True), suppress(BrokerError):
            await guarded(admin.close(), what)
