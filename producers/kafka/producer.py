"""The producer of a shared stream that reads as a Kafka consumer group."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Hashable, Iterable, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

import anyio
from aiokafka import AIOKafkaConsumer, TopicPartition

from producers.kafka.assignment import Assignment
from producers.kafka.connection.connecting import start_consumer, stop_consumer
from producers.kafka.connection.topics import Topics
from producers.kafka.dead_letter import DeadLetters
from producers.kafka.in_flight import LaneInFlight
from producers.kafka.lane_reader import LaneReader, find_positions
from producers.kafka.message import KafkaMessage, Record
from producers.kafka.positions.commits import Commits
from producers.kafka.positions.start import Start
from producers.kafka.settle import Settler
from producers.kafka.wire.cluster import Cluster
from producers.kafka.wire.fetching import Fetching
from producers.kafka.wire.records import OutOfRange, get_records
from triggerer.abc import (
    AdvanceItem,
    ReportPassed,
    ReportStanding,
    SharedStreamProducer,
    StoreMark,
)
from triggerer.errors import BrokerUnavailable

if TYPE_CHECKING:
    from producers.kafka.settings import KafkaSettings

logger = logging.getLogger(__name__)

_CHECK_TOPICS_EVERY_S = 5.0
_CHECK_TOPICS_TIMEOUT_S = 5.0


class KafkaSharedStreamProducer(SharedStreamProducer):
    """Reads topics as a member of a consumer group. A lane is a partition. An event is its own broker payload.

    Args:
        topics: Names, or one pattern, which begins with `^`: see `Topics`.
        start: Where to start in partitions without a commit of the group: see `Start`.
    Raises:
        ValueError: The start is invalid, or a pattern is not the only topic.
        re.error: The pattern is no regular expression.

    - `advance` commits in one request for all lanes that advance at the same time, and never past a failed message.
    - Outside `advance`, the producer commits only where reading begins: a partition's first position, and the new
      position of a partition whose old position was out of range.
    - A failed message is delivered again after a growing delay. After its second failure it is delivered alone, while
      its partition waits. After `max_deliveries` failures it goes to the dead-letter topic. The count is stored in the
      commit's metadata and so survives restarts.
    - Rejected messages go to the dead-letter topic. Without such a topic, the runtime parks them.
    - `advance` ignores messages of an assignment that has ended, and messages that were delivered before a rewind.
    - Pausing a lane pauses its partition and keeps the membership. A partition that is revoked and assigned again is
      not paused.
    - `open_stream` yields the messages of a fetched batch (`max_batch`) without suspending, and suspends between
      batches.
    """

    lanes_advance_side_by_side: ClassVar[bool] = True
    pauses_lanes: ClassVar[bool] = True

    def __init__(
        self,
        topics: Iterable[str],
        *,
        settings: KafkaSettings,
        group: str,
        start: Any = "earliest",
    ) -> None:
        self._topics = Topics.parse(topics, settings)
        self._settings = settings
        self._group = group
        self._start = Start.parse(start)
        self._consumer: AIOKafkaConsumer | None = None
        self._assignment: Assignment | None = None
        self._settler: Settler | None = None
        self._dead_letters = DeadLetters(settings, group)
        self._paused = False
        self._is_unanswered = False
        """True if a failed look-up of the topics was logged, and no look-up has succeeded since."""
        self._report_standing: ReportStanding | None = None
        self._mark: StoreMark | None = None

    @property
    def lanes(self) -> Mapping[TopicPartition, LaneInFlight]:
        """The partitions that are assigned to this consumer now; empty before the first assignment."""
        return {} if self._assignment is None else self._assignment.lanes

    @property
    def _what(self) -> str:
        return f"stream of {self._topics} at {self._settings.bootstrap_servers}"

    async def open_stream(self) -> AsyncIterator[tuple[KafkaMessage, KafkaMessage]]:
        """Yield messages, in order within each partition.

        Raises:
            BrokerUnavailable: The cluster did not answer, although the client retried. Or a topic
                was deleted and created again. A new stream may succeed.
            BrokerRefused: A topic does not exist, or this user may not read it. Or retention deleted unread messages,
                and `expired_offset` is "fail".
            ConfigurationError: The TLS files cannot be used, or a topic would be its own dead-letter topic.
            StoreRestored: The group's commits are newer than the database, which was restored from
                a backup.
        """
        consumer, assignment = await self._open()
        check_at = anyio.current_time() + _CHECK_TOPICS_EVERY_S
        answered_at = anyio.current_time()
        while True:
            if assignment.error is not None:
                raise assignment.error
            # Let other tasks run and a cancellation take effect between batches, however much is buffered.
            await anyio.lowlevel.checkpoint()
            fetched = await self._fetch(consumer, assignment)
            for lane, delivery, records in fetched:
                if lane.retries_alone:
                    assignment.retry_alone(lane)
                for record in records:
                    if lane.delivery != delivery or lane.draining or lane.closed:
                        break
                    if lane.paused:
                        assignment.put_back(lane)
                        break
                    message = KafkaMessage(record, lane, delivery)
                    lane.delivered = message.offset + 1
                    yield message, message
                    if lane.retries_alone:
                        break
            now = anyio.current_time()
            if now >= check_at or assignment.topics_are_suspect:
                check_at = now + _CHECK_TOPICS_EVERY_S
                if await self._broker_answers(assignment):
                    answered_at = now
                    topics = {partition.topic for partition in assignment.lanes}
                    await self._dead_letters.recheck_topics(topics)
                elif now - answered_at > self._settings.commit_timeout_s:
                    raise BrokerUnavailable(
                        f"{self._what}: no broker has answered for {now - answered_at:.0f} s"
                    )

    async def _open(self) -> tuple[AIOKafkaConsumer, Assignment]:
        settings = self._settings
        # With a pattern there is nothing to check, because a pattern never matches dead-letter topics.
        settings.check_dead_letters(self._topics.names if self._topics.pattern is None else ())
        consumer = AIOKafkaConsumer(
            **settings.reading_arguments(),
            group_id=self._group,
            group_instance_id=settings.group_instance_id,
            session_timeout_ms=settings.session_timeout_ms,
            heartbeat_interval_ms=settings.heartbeat_interval_ms,
            rebalance_timeout_ms=max(
                settings.session_timeout_ms, int(settings.revoke_timeout_s * 1000) + 10_000
            ),
            # Set no limit on the time between two polls, because a paused stream must stay a member of the group.
            max_poll_interval_ms=2**31 - 1,
        )
        self._consumer = consumer
        cluster = Cluster(
            consumer,
            self._group,
            settings.bootstrap_servers,
            fetch_max_wait_ms=settings.fetch_max_wait_ms,
            mark=self._mark,
        )
        finds_topics = self._topics.pattern is not None
        commits = Commits(cluster, timeout_s=settings.commit_timeout_s, topics_may_go=finds_topics)
        self._assignment = Assignment(
            consumer,
            cluster,
            commits,
            start=self._start,
            expired_offset=settings.expired_offset,
            finds_topics=finds_topics,
            positions_timeout_s=settings.session_timeout_ms / 1000 * 0.8,
            revoke_timeout_s=settings.revoke_timeout_s,
            idle_wait_ms=settings.idle_fetch_wait_ms,
        )
        self._settler = Settler(self._assignment, commits, self._dead_letters, settings)
        if self._report_standing is not None:
            self._settler.use_standing(self._report_standing)
        if self._paused:
            self._assignment.pause()
        await start_consumer(consumer, settings, self._what)
        Fetching(consumer, self._assignment)
        # Look the topics up before the subscription, so that a missing topic raises an error before this member joins
        # the group.
        if not finds_topics:
            await cluster.describe(self._topics.names)
        await self._dead_letters.check_topics(
            await self._topics.find(consumer, self._what), cluster
        )
        self._topics.subscribe(consumer, self._assignment)
        return consumer, self._assignment

    async def _fetch(
        self, consumer: AIOKafkaConsumer, assignment: Assignment
    ) -> list[tuple[LaneInFlight, int, list[Record]]]:
        """Return the next records by lane, with their delivery number; empty if none came for a while."""
        try:
            batches = await get_records(consumer, self._settings.max_batch, self._what)
        except OutOfRange as error:
            await assignment.reset_out_of_range(error.offsets)
            return []
        # Await nothing between `get_records` and this statement, so that no rebalance can replace a lane in between.
        # Drop the records of a partition without a lane. They are fetched again once the partition has a position.
        return [
            (lane, lane.delivery, records)
            for partition, records in batches.items()
            if (lane := assignment.lanes.get(partition)) is not None and not lane.draining
        ]

    async def _broker_answers(self, assignment: Assignment) -> bool:
        try:
            with anyio.fail_after(_CHECK_TOPICS_TIMEOUT_S):
                recreated = await assignment.find_recreated()
        except TimeoutError:
            return False
        except BrokerUnavailable as error:
            # The client reconnects on its own. The stream ends only if that takes too long.
            if not self._is_unanswered:
                logger.warning("%s: %s", self._what, error)
            self._is_unanswered = True
            return False
        if recreated is not None:
            raise recreated
        if self._is_unanswered:
            self._is_unanswered = False
            logger.info("%s: the broker answers again", self._what)
        return True

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """Commit a lane's position, or rewind to a failed message. Returns when the broker has stored the commit.

        Raises:
            BrokerUnavailable: No commit succeeded for `commit_timeout_s`.
            BrokerRefused: The broker accepts no commits from this user.

        Cancellation: The commit may have been made or not; messages that are not committed are delivered again.
        """
        if self._settler is not None:
            await self._settler.advance(batch)

    def use_mark(self, mark: StoreMark) -> None:
        """Store `mark`, the present mark of the database, in the metadata of each later commit.

        If an earlier commit at the broker has a newer mark than the database, the database was restored from a backup.
        The producer then refuses to read.
        """
        self._mark = mark

    def use_standing(self, report: ReportStanding) -> None:
        """Call `report` when a message blocks a partition, and with None when the partition moves on.

        A message blocks its partition if it has failed too often, and no dead-letter topic accepts it.
        """
        self._report_standing = report

    def get_advance_lane(self, broker_payload: KafkaMessage) -> TopicPartition:
        return broker_payload.lane.partition

    def get_idempotency_key(self, broker_payload: KafkaMessage) -> str:
        """Return `<topic>@<topic id>/<partition>/<offset>`; after a cut, some keys end with an epoch.

        Brokers before Kafka 2.8 have no topic ids. With these, the key has the message's timestamp instead, which
        distinguishes messages at the same offset if the topic was deleted and created again.
        """
        lane, offset = broker_payload.lane, broker_payload.offset
        if key := lane.key(offset):
            return key
        topic, partition = lane.partition
        return f"{topic}@{broker_payload.timestamp}/{partition}/{offset}"

    def dead_letters_rejected(self, broker_payload: KafkaMessage) -> bool:
        """Whether the message's topic has a dead-letter topic that has not refused a message recently."""
        return self._dead_letters.accepts(broker_payload.topic)

    def get_size(self, broker_payload: KafkaMessage) -> int:
        """Return the bytes of key, value and headers."""
        key, value = broker_payload.key, broker_payload.value
        size = 0 if value is None else len(value)
        if key is not None:
            size += len(key)
        if headers := broker_payload.headers:
            # A header may have no value.
            size += sum(len(name) + len(content or b"") for name, content in headers)
        return size

    def get_position(self, broker_payload: KafkaMessage) -> list[Any]:
        """Return `[topic id, offset]`; with brokers before Kafka 2.8, which have no topic ids, `[null, offset]`."""
        return [broker_payload.lane.incarnation, broker_payload.offset]

    def get_waiting(self) -> Mapping[Hashable, int] | None:
        """Return, by partition, how many messages of the log are not delivered yet; None: unknown.

        The end of each log is taken from the last answer to a fetch.
        """
        consumer = self._consumer
        if consumer is None:
            return None
        waiting: dict[Hashable, int] = {}
        for partition, lane in list(self.lanes.items()):
            end = consumer.highwater(partition)
            if end is None:
                return None
            waiting[partition] = max(end - lane.delivered, 0)
        return waiting

    def read_lane(
        self, lane: Hashable, position: list[Any]
    ) -> AsyncIterator[tuple[KafkaMessage, KafkaMessage]]:
        """See `read_lane_reporting`."""
        return self.read_lane_reporting(lane, position, lambda _: None)

    async def read_lane_reporting(
        self, lane: Hashable, position: list[Any], report: ReportPassed
    ) -> AsyncIterator[tuple[KafkaMessage, KafkaMessage]]:
        """Read a partition with a separate consumer that is in no group.

        Raises:
            BrokerUnavailable: As in `open_stream`. Also if the log is cut, or the topic is deleted and created again,
                during the reading.
            BrokerRefused: As in `open_stream`.
        """
        partition = _partition(lane)

        def group_lane() -> LaneInFlight | None:
            return self.lanes.get(partition)

        reader = LaneReader(partition, self._settings, group=self._group, group_lane=group_lane)
        async with aclosing(reader.read(position, report)) as messages:
            async for message in messages:
                yield message, message

    async def find_positions(self, start: datetime | None) -> Mapping[Hashable, list[Any]]:
        """Ask the brokers for the positions by the messages' timestamps.

        Raises:
            BrokerUnavailable, BrokerRefused: As `open_stream`.
        """
        return await find_positions(self._topics, self._settings, start)

    def dump_event(self, event: KafkaMessage) -> bytes:
        return event.dump()

    def load_event(self, data: bytes) -> KafkaMessage:
        """Return the message. It belongs to no assignment, so it can be filtered and dead-lettered, but not advanced.

        Raises:
            ValueError: `dump_event` did not write these bytes.
        """
        return KafkaMessage.load(data)

    async def dead_letter(self, event: KafkaMessage, reason: str) -> None:
        """Write the message to the dead-letter topic, with the reason in its headers.

        Raises:
            BrokerUnavailable, BrokerRefused: The message could not be written.
        """
        await self._dead_letters.write(event, {"reason": reason})

    async def pause(self) -> None:
        """Stop fetching, and stay a member of the group."""
        self._paused = True
        if self._assignment is not None:
            self._assignment.pause()

    async def resume(self) -> None:
        self._paused = False
        if self._assignment is not None:
            self._assignment.resume()

    async def pause_lane(self, lane: Hashable) -> None:
        """Stop fetching a partition; the membership stays, and the other partitions continue."""
        if self._assignment is not None and isinstance(lane, TopicPartition):
            self._assignment.pause_lane(lane)

    async def resume_lane(self, lane: Hashable) -> None:
        if self._assignment is not None and isinstance(lane, TopicPartition):
            self._assignment.resume_lane(lane)

    async def aclose(self) -> None:
        """Leave the group. Messages that were not advanced are delivered to another member."""
        if self._assignment is not None:
            self._assignment.abandon()
        try:
            if self._consumer is not None:
                await stop_consumer(self._consumer, self._what)
        finally:
            await self._dead_letters.aclose()


def _partition(lane: Hashable) -> TopicPartition:
    """Return the partition of a lane, which is a plain tuple if it comes from the store."""
    assert isinstance(lane, tuple)
    return TopicPartition(*lane)
