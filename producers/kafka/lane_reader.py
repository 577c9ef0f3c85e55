"""Reads one partition from a position, without joining or changing the group."""

from __future__ import annotations

import logging
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Hashable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import anyio
from aiokafka import AIOKafkaConsumer, TopicPartition

from producers.kafka.connection.connecting import connect, stop_consumer
from producers.kafka.connection.topics import Topics
from producers.kafka.errors import guarded
from producers.kafka.in_flight import LaneInFlight
from producers.kafka.message import KafkaMessage, Record
from producers.kafka.positions.position import CommittedPosition, CutTopic, UsedOffsets
from producers.kafka.positions.start import Start
from producers.kafka.wire.cluster import Cluster, Membership, TopicDescription
from producers.kafka.wire.fetching import Fetching
from producers.kafka.wire.records import OutOfRange, get_records
from triggerer.abc import ReportPassed
from triggerer.errors import BrokerUnavailable

if TYPE_CHECKING:
    from producers.kafka.settings import KafkaSettings

logger = logging.getLogger(__name__)

_NO_MEMBER: Final = Membership(-1, "")
_CHECK_TOPIC_EVERY_S: Final = 5.0


class LaneReader:
    """Reads one partition once, from one position.

    Args:
        group: The group's name.
        group_lane: Returns the group's lane for the partition; None while the partition is not assigned. The reader
            uses this lane's cuts (see `UsedOffsets`), so that its messages get the same idempotency keys as in the
            group.
    """

    def __init__(
        self,
        partition: TopicPartition,
        settings: KafkaSettings,
        *,
        group: str,
        group_lane: Callable[[], LaneInFlight | None],
    ) -> None:
        self.topics: dict[str, TopicDescription] = {}
        self.lanes: dict[TopicPartition, LaneInFlight] = {}
        self.topics_are_suspect = False
        self._partition = partition
        self._settings = settings
        self._group = group
        self._assigned_lane = group_lane
        self._committed_lane: LaneInFlight | None = None
        self._used: tuple[UsedOffsets, ...] = ()
        self._what = (
            f"reading of {partition.topic}[{partition.partition}] at {settings.bootstrap_servers}"
        )

    def fetch_wait_ms(self, usual_ms: int) -> int:
        return usual_ms

    async def read(
        self, position: list[Any], report: ReportPassed
    ) -> AsyncGenerator[KafkaMessage, None]:
        """Yield the messages at a position and after it, in order, and wait for more at the end.

        Args:
            report: See `read_lane_reporting`. Called with the new position if deleted messages or transaction markers
                were skipped, or if reading begins at another position than the given one.
        Raises:
            BrokerUnavailable: The cluster does not answer, or the topic or its log was replaced.
            BrokerRefused: The topic does not exist, or this user may not read it.
        """
        # While the partition is not assigned, only the group's commit contains the known cuts.
        asks = self._assigned_lane() is None
        group = self._group if asks else None
        async with _connected(self._settings, self._what, group) as (consumer, cluster):
            if asks:
                self._committed_lane = await self._find_committed(cluster)
            await self._begin(consumer, cluster, position)
            lane, shown = self.lanes[self._partition], position
            check_at = anyio.current_time() + _CHECK_TOPIC_EVERY_S
            while True:
                # Let other tasks run, and a cancellation take effect, between batches, even if many messages are
                # buffered.
                await anyio.lowlevel.checkpoint()
                place = [lane.incarnation, lane.delivered]
                if place != shown:
                    shown = place
                    report(place)
                try:
                    batches = await get_records(consumer, self._settings.max_batch, self._what)
                except OutOfRange:
                    await self._reset(consumer)
                    continue
                if records := batches.get(self._partition):
                    self._compare(lane, records)
                    delivery, lane.delivered = lane.delivery, records[-1].offset + 1
                    for record in records:
                        yield KafkaMessage(record, lane, delivery)
                    shown = [lane.incarnation, lane.delivered]
                # The client skips transaction markers without returning a record, so ask for the client's position.
                at = await guarded(consumer.position(self._partition), self._what)
                lane.delivered = max(lane.delivered, at)
                if self.topics_are_suspect or anyio.current_time() >= check_at:
                    check_at = anyio.current_time() + _CHECK_TOPIC_EVERY_S
                    await self._check_topic(cluster)

    def _group_lane(self) -> LaneInFlight | None:
        """Return the group's lane; None if it is unknown, or belongs to a deleted topic of the same name."""
        found = self._assigned_lane() or self._committed_lane
        topic_id = self.topics[self._partition.topic].topic_id
        return found if found is not None and found.committed.topic_id == topic_id else None

    async def _find_committed(self, cluster: Cluster) -> LaneInFlight | None:
        """Return a lane that begins at the group's committed position; None if the group has committed none."""
        timeout_s = self._settings.commit_timeout_s
        try:
            with anyio.fail_after(timeout_s):
                found = await cluster.committed([self._partition])
        except TimeoutError:
            raise BrokerUnavailable(
                f"{self._what}: the commit of group {self._group} could not be read in {timeout_s:.0f} s"
            ) from None
        committed = found.get(self._partition)
        return None if committed is None else LaneInFlight(self._partition, _NO_MEMBER, committed)

    async def _begin(
        self, consumer: AIOKafkaConsumer, cluster: Cluster, position: list[Any]
    ) -> None:
        topic_id, offset = position
        partition = self._partition
        self.topics = await cluster.describe([partition.topic])
        topic = self.topics[partition.topic]
        await cluster.know_leaders([partition.topic])
        first = await self._first_offset(consumer)
        if None not in (topic_id, topic.topic_id) and topic_id != topic.topic_id:
            logger.error(
                "%s: topic %s was deleted and created again: position %d belongs to its predecessor; the partition"
                " is read from its beginning", self._what, partition.topic, offset,
            )  # fmt: skip
            offset = first
        elif offset < first:
            self._report_deleted(first - offset)
            offset = first
        group = self._group_lane()
        self._used = () if group is None else group.used
        # The position may list the cuts that were known when its message was read (`CutTopic`). The group may know a
        # newer cut, which begins at or before the position. Then the offsets from this cut to the position have new
        # messages, which were not read. So begin at the cut.
        known = topic_id.used if isinstance(topic_id, CutTopic) else ()
        cuts = [part for part in self._used if part not in known]
        offset = min([offset, *(part.since for part in cuts if part.since <= offset < part.below)])
        committed = CommittedPosition(
            offset,
            topic_id=topic.topic_id,
            # Fetches contain this epoch, so that the broker can report a cut.
            epoch=None
            if group is None or offset > group.delivered
            else group.epochs.before(offset),
            used=self._used,
        )
        self.lanes[partition] = LaneInFlight(partition, _NO_MEMBER, committed)
        Fetching(consumer, self)
        consumer.assign([partition])
        consumer.seek(partition, offset)

    def _compare(self, lane: LaneInFlight, records: Sequence[Record]) -> None:
        """Check that the group and this reader have read the same messages at the same offsets.

        Raises:
            BrokerUnavailable: The log was cut, and only the group or only this reader knows the cut.
        """
        group = self._group_lane()
        if group is None:
            return
        if any(part not in self._used for part in group.used):
            raise BrokerUnavailable(f"{self._what}: the log was cut; it is read again from the cut")
        read = [record.offset for record in records if record.offset < group.delivered]
        if not read:
            return
        here, there = lane.epochs.before(read[-1] + 1), group.epochs.before(read[-1] + 1)
        if here is not None and there is not None and here > there:
            raise BrokerUnavailable(
                f"{self._what}: the log was cut before {group.delivered} (an unclean leader election?), and the group"
                " does not know the cut yet"
            )

    async def _first_offset(self, consumer: AIOKafkaConsumer) -> int:
        found = await guarded(consumer.beginning_offsets([self._partition]), self._what)
        first: int = found[self._partition]
        return first

    def _report_deleted(self, number: int) -> None:
        logger.error(
            "%s: up to %d messages were deleted before they were read (retention); "
            "the oldest that is left is read next",
            self._what,
            number,
        )

    async def _reset(self, consumer: AIOKafkaConsumer) -> None:
        lane = self.lanes[self._partition]
        first = await self._first_offset(consumer)
        if lane.reported_cut is not None or lane.delivered >= first:
            raise BrokerUnavailable(
                f"{self._what}: the log was cut before {lane.delivered} (an unclean leader election?)"
            )
        self._report_deleted(first - lane.delivered)
        lane.step_back(lane.position(first), retries_alone=False)
        consumer.seek(self._partition, first)

    async def _check_topic(self, cluster: Cluster) -> None:
        self.topics_are_suspect = False
        name = self._partition.topic
        present = (await cluster.describe([name]))[name]
        if present.topic_id != self.topics[name].topic_id:
            raise BrokerUnavailable(f"{self._what}: the topic was deleted and created again")


async def find_positions(
    topics: Topics, settings: KafkaSettings, start: datetime | None
) -> Mapping[Hashable, list[Any]]:
    """Return, by partition, the position of the first message at `start` or later.

    For a partition without such a message, return the log's end. If `start` is None, return the positions of the oldest
    messages.

    Raises:
        BrokerUnavailable: The cluster does not answer.
        BrokerRefused: A topic does not exist, or this user may not read it.
    """
    what = f"look-up of positions in {topics} at {settings.bootstrap_servers}"
    async with _connected(settings, what) as (consumer, cluster):
        names = await topics.find(consumer, what)
        described = await cluster.describe(names, may_be_gone=topics.pattern is not None)
        await cluster.know_leaders(list(described))
        partitions = [
            TopicPartition(topic.name, number)
            for topic in described.values()
            for number in range(topic.partitions)
        ]
        # For a `start` in the future, return the log's end without a look-up by time. Some writers send microseconds
        # instead of milliseconds, and the look-up would find their messages, which seem to come from the far future.
        is_to_come = start is not None and start > datetime.now(UTC)
        since = Start(latest=True) if is_to_come else Start(time=start)
        offsets = await since.find(consumer, partitions, what)
        return {place: [described[place.topic].topic_id, at] for place, at in offsets.items()}


@asynccontextmanager
async def _connected(
    settings: KafkaSettings, what: str, group: str | None = None
) -> AsyncIterator[tuple[AIOKafkaConsumer, Cluster]]:
    """Connect a consumer that joins no group; yield it and its cluster.

    With `group`, that group's commits can be read.
    """
    consumer = AIOKafkaConsumer(**settings.reading_arguments(), group_id=group)
    try:
        await connect(consumer, settings, what)
        servers, wait_ms = settings.bootstrap_servers, settings.fetch_max_wait_ms
        yield consumer, Cluster(consumer, group or "", servers, fetch_max_wait_ms=wait_ms)
    finally:
        await stop_consumer(consumer, what)
