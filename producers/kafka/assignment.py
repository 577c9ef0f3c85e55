"""The partitions that the consumer group assigns to this consumer, and the positions from which they are read.

aiokafka has only the eager protocol: every rebalance revokes all partitions and assigns them again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final, Literal

import anyio
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition

from producers.kafka.errors import guarded
from producers.kafka.in_flight import LaneInFlight
from producers.kafka.positions.commits import Commits
from producers.kafka.positions.leader_epochs import LeaderEpochs
from producers.kafka.positions.position import CommittedPosition
from producers.kafka.positions.start import Start
from producers.kafka.positions.starting_positions import StartingPositions, names_of
from producers.kafka.wire.cluster import Cluster, TopicDescription
from triggerer.errors import BrokerError, BrokerRefused, BrokerUnavailable, StoreRestored

logger = logging.getLogger(__name__)

_IDLE_AFTER_S: Final = 10.0
"""After this long without a message, the stream sends fewer fetches."""


class Assignment(ConsumerRebalanceListener):  # type: ignore[misc]
    """The lanes of the partitions that are assigned to this consumer.

    aiokafka calls the two listener methods (`on_…`) from its coordination task, and only logs their errors. So the
    methods store an error in `error`, and the stream raises it.
    """

    def __init__(
        self,
        consumer: AIOKafkaConsumer,
        cluster: Cluster,
        commits: Commits,
        *,
        start: Start,
        expired_offset: Literal["earliest", "latest", "fail"],
        finds_topics: bool,
        positions_timeout_s: float,
        revoke_timeout_s: float,
        idle_wait_ms: int,
    ) -> None:
        self.lanes: dict[TopicPartition, LaneInFlight] = {}
        self.topics: dict[str, TopicDescription] = {}
        self.topics_are_suspect = False
        """True if a broker does not know the id of a topic, so that the topics must be looked up now."""
        self.error: BrokerError | StoreRestored | None = None
        self._consumer = consumer
        self._cluster = cluster
        self._commits = commits
        self._starting = StartingPositions(
            consumer, cluster, commits, start, finds_topics=finds_topics
        )
        self._expired_offset = expired_offset
        self._finds_topics = finds_topics
        """True if the stream reads a pattern, so that topics may appear and disappear."""
        self._positions_timeout_s = positions_timeout_s
        self._revoke_timeout_s = revoke_timeout_s
        self._idle_wait_ms = idle_wait_ms
        self.on_revoked: Callable[[TopicPartition], None] = lambda _: None
        """Called for each revoked partition."""
        self._busy_at = anyio.current_time()
        self._delivered = 0
        self._paused = False
        self._abandoned = False
        self._progress: anyio.Event | None = None

    async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        """Wait up to `revoke_timeout_s` until the messages in flight are advanced.

        The next owners of the partitions receive the remaining messages again.
        """
        lanes = [self.lanes[partition] for partition in revoked if partition in self.lanes]
        membership = self._cluster.membership()
        for lane in lanes:
            lane.draining = True
            if lane.membership != membership:
                # The lane was assigned under an earlier membership. The broker refuses commits of that membership, so
                # do not wait for the lane's messages.
                lane.close()
        with anyio.move_on_after(self._revoke_timeout_s):
            while any(lane.in_flight for lane in lanes):
                self._progress = anyio.Event()
                await self._progress.wait()
        self._progress = None
        left = sum(lane.delivered - lane.committed.offset for lane in lanes if lane.in_flight)
        for lane in lanes:
            lane.close()
            self.lanes.pop(lane.partition, None)
            self.on_revoked(lane.partition)
        self._wait_as_long_as_possible()
        if left:
            logger.warning(
                "partitions %s were revoked with about %d messages in flight, which are delivered again",
                names_of(revoked),
                left,
            )

    async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        """Find each partition's position, within a short deadline: aiokafka sends no heartbeats until this returns."""
        try:
            with anyio.fail_after(self._positions_timeout_s):
                await self._begin(assigned)
        except (BrokerError, StoreRestored) as error:
            self.error = error
        except TimeoutError as error:
            self.error = BrokerUnavailable(
                f"the positions of {names_of(assigned)} could not be read in {self._positions_timeout_s:.0f} s"
            )
            self.error.__cause__ = error
        except Exception as error:  # noqa: BLE001 - aiokafka would only log it; the stream raises it
            if isinstance(error, ExceptionGroup) and (first := _first(error)) is not None:
                # The commits ran concurrently, and several of them may have raised an error. Report only one error.
                self.error = first
                return
            self.error = BrokerUnavailable(f"assignment of {names_of(assigned)} failed: {error!r}")
            self.error.__cause__ = error

    async def _begin(self, assigned: Collection[TopicPartition]) -> None:
        membership = self._cluster.membership()
        if not assigned:
            self._starting.has_started = True
            logger.info("no partition for this member; the group's other members read them all")
            return
        self.topics = await self._cluster.describe({partition.topic for partition in assigned})
        positions = await self._starting.find(assigned, membership, self.topics)
        if self._abandoned:
            return
        for partition, position in positions.items():
            self.lanes[partition] = LaneInFlight(partition, membership, position)
            self._consumer.seek(partition, position.offset)
            if self._paused:
                self._consumer.pause(partition)
        self._starting.has_started = True
        logger.info("reading %s", names_of(assigned))

    async def reset_out_of_range(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Find a new position for each partition whose position is out of range, and log the reason.

        - Retention deleted unread messages: continue as `expired_offset` says.
        - The broker reported a cut (the log lost its end): continue at the cut.
        - The log ends before the position, and no cut was reported: continue at the oldest message. A later position
          could skip messages that were written after a cut.
        - The log contains the position, and no cut was reported: continue at the committed position.

        Messages that are read again create no second event, because the store has their idempotency keys.

        Raises:
            BrokerUnavailable: A topic was created again, or the broker does not answer.
            BrokerRefused: A position has expired, and `expired_offset` is "fail". Or a topic no
                longer exists, and the stream reads no pattern. Or the broker refuses a request.
        """
        for partition in offsets:
            if (lane := self.lanes.get(partition)) is not None and self._consumer_has(lane):
                # Pause the partition until its new position is known. Otherwise the client would fetch from the old
                # position again, and the broker would refuse the fetch again.
                self._consumer.pause(partition)
        if recreated := await self.find_recreated():
            raise recreated
        what = f"look-up of the first offsets of {names_of(offsets)}"
        begin = await guarded(self._consumer.beginning_offsets(list(offsets)), what)
        end = await guarded(self._consumer.end_offsets(list(offsets)), what)
        for partition, offset in offsets.items():
            lane = self.lanes.get(partition)
            if lane is None or lane.draining or not self._consumer_has(lane):
                continue
            if offset < begin[partition] and self._expired_offset != "earliest":
                lane, reason = self._reset_expired_lane(
                    lane, offset, begin[partition], end[partition]
                )
            else:
                lane, reason = _reset_lane(lane, offset, begin[partition], end[partition])
            self.lanes[partition] = lane
            position = lane.committed
            logger.error(
                "position %d of %s is out of range: %s; continuing at offset %d",
                offset,
                partition,
                reason,
                position.offset,
            )
            self._consumer.seek(partition, position.offset)
            # Commit the cuts before any message is delivered, because idempotency keys depend on them. After a crash,
            # the next owner of the partition then computes the same keys.
            if await self._commits.commit(partition, lane.membership, position):
                self._resume(lane)
            else:
                lane.close()

    def _reset_expired_lane(
        self, lane: LaneInFlight, offset: int, first: int, end: int
    ) -> tuple[LaneInFlight, str]:
        """Continue at the end of the log, or fail, as `expired_offset` says.

        Raises:
            BrokerRefused: `expired_offset` is "fail".
        """
        lost = f"{first - offset} messages were deleted before they were read (retention)"
        if self._expired_offset == "fail":
            raise BrokerRefused(
                f"position {offset} of {names_of([lane.partition])} is out of range: {lost}",
                hint='set expired_offset of the connection to "earliest" or "latest", to say where to continue',
            )
        lane.step_back(lane.position(end), retries_alone=False)
        return lane, f"{lost}, and {end - first} are skipped, as expired_offset says"

    async def find_recreated(self) -> BrokerUnavailable | None:
        """Return an error to raise if a topic was deleted and created again since the lanes were opened.

        Raises:
            BrokerRefused: A topic no longer exists, and the stream reads no pattern.
            BrokerUnavailable: The broker does not answer.
        """
        known = self.topics
        self.topics_are_suspect = False
        if not known:
            return None
        present = await self._cluster.describe(known, may_be_gone=self._finds_topics)
        if self.topics is not known:
            return None
        for name, topic in present.items():
            if known[name].topic_id != topic.topic_id:
                return BrokerUnavailable(
                    f"topic {name!r} was deleted and created again "
                    f"(id {known[name].topic_id}, now {topic.topic_id})",
                    hint="the stream is opened again and reads the new topic from its beginning",
                )
        return None

    def fetch_wait_ms(self, usual_ms: int) -> int:
        """Return how long a broker may wait for messages before it answers the next fetch.

        While a broker waits, it answers no other request on the connection. So a busy stream lets the broker wait only
        for `usual_ms`. An idle stream lets the broker wait longer, and so sends fewer requests. A stream is idle if,
        for `_IDLE_AFTER_S`:

        - it delivered nothing,
        - no message was in flight,
        - no lane was paused or waited for a failed message.
        """
        lanes = self.lanes.values()
        now, delivered = anyio.current_time(), sum(lane.delivered for lane in lanes)
        if delivered != self._delivered or any(
            lane.in_flight or lane.is_blocked or lane.paused for lane in lanes
        ):
            self._busy_at, self._delivered = now, delivered
        return self._idle_wait_ms if now - self._busy_at >= _IDLE_AFTER_S else usual_ms

    def redeliver_after(
        self, lane: LaneInFlight, position: CommittedPosition, delay_s: float
    ) -> None:
        """Rewind to `position` and deliver from there after the delay; other partitions continue meanwhile."""
        # Most messages succeed at the second try. So after one failure, the message is delivered again with the later
        # messages. After two failures, the message is delivered alone; see `LaneInFlight.retries_alone`.
        lane.step_back(position, retries_alone=position.failures > 1)
        if lane.draining or not self._consumer_has(lane):
            return
        self._consumer.pause(lane.partition)
        self._consumer.seek(lane.partition, position.offset)
        # `_release` awaits nothing, so a timer can call it without a task. `LaneInFlight.close` stops the timer.
        lane.stop_timer()
        lane.timer = asyncio.get_running_loop().call_later(delay_s, self._release, lane)
        self._cluster.wait_long(False)

    def _release(self, lane: LaneInFlight) -> None:
        lane.timer = None
        self._wait_as_long_as_possible()
        self._resume(lane)

    def _wait_as_long_as_possible(self) -> None:
        self._cluster.wait_long(not any(other.is_blocked for other in self.lanes.values()))

    def retry_alone(self, lane: LaneInFlight) -> None:
        """Fetch nothing after the lane's next message until that message is advanced."""
        if self._consumer_has(lane):
            self._consumer.pause(lane.partition)

    def end_retry_alone(self, lane: LaneInFlight) -> None:
        """Continue with the later messages, because the message that was delivered alone is advanced."""
        lane.retries_alone = False
        if self._consumer_has(lane):
            self._consumer.seek(lane.partition, lane.committed.offset)
            self._release(lane)

    def pause(self) -> None:
        self._paused = True
        for lane in self.lanes.values():
            if self._consumer_has(lane):
                self._consumer.pause(lane.partition)

    def resume(self) -> None:
        self._paused = False
        for lane in self.lanes.values():
            self._resume(lane)

    def pause_lane(self, partition: TopicPartition) -> None:
        """Stop fetching a partition, if it is assigned to us, until it is resumed or assigned again."""
        lane = self.lanes.get(partition)
        if lane is not None:
            lane.paused = True
            if self._consumer_has(lane):
                self._consumer.pause(partition)

    def resume_lane(self, partition: TopicPartition) -> None:
        lane = self.lanes.get(partition)
        if lane is not None:
            lane.paused = False
            self._resume(lane)

    def put_back(self, lane: LaneInFlight) -> None:
        """Rewind the consumer to the first message that the stream has not yielded."""
        if self._consumer_has(lane):
            self._consumer.seek(lane.partition, lane.delivered)

    def _resume(self, lane: LaneInFlight) -> None:
        if not self._paused and lane.may_deliver and self._consumer_has(lane):
            self._consumer.resume(lane.partition)

    def _consumer_has(self, lane: LaneInFlight) -> bool:
        return not lane.closed and lane.partition in self._consumer.assignment()

    def advanced(self) -> None:
        """Wake a rebalance that waits for messages in flight."""
        if self._progress is not None:
            self._progress.set()

    def abandon(self) -> None:
        """Close all lanes at the end of the stream, so that a rebalance no longer waits for them."""
        self._abandoned = True
        for lane in self.lanes.values():
            lane.close()
        self.lanes.clear()
        self.advanced()


def _reset_lane(lane: LaneInFlight, offset: int, first: int, end: int) -> tuple[LaneInFlight, str]:
    """Return the lane to continue with, and the reason why the broker refused `offset`.

    If the broker reported a cut, the given lane is closed, and the result is a new lane. The committed position of the
    returned lane is the next message to read.
    """
    cut, lane.reported_cut = lane.reported_cut, None
    if offset >= first and cut is not None:
        lane.close()
        return lane.after_cut(cut, offset, first), (
            f"the log was cut at {cut.end_offset} (an unclean leader election?); the messages written after the"
            " cut are read next"
        )
    position = lane.position(first)
    if offset < first:
        reason = (
            f"{first - offset} messages were deleted before they were read (retention);"
            " the oldest that is left is read next"
        )
    elif offset > end:
        reason = (
            f"the log ends at {end}, so it was cut (an unclean leader election?);"
            " it is read from the earliest message"
        )
    else:
        lane.epochs = LeaderEpochs(offset, None)
        position = lane.committed
        reason = "the broker could not tell whether the log was cut"
    lane.step_back(position, retries_alone=position.failures > 1)
    return lane, reason


def _first(group: ExceptionGroup) -> BrokerError | None:
    """Return the first `BrokerRefused` of an exception group, or else its first `BrokerError`; None if it has none."""
    found = [error for error in group.exceptions if isinstance(error, BrokerError)]
    return next(
        (error for error in found if isinstance(error, BrokerRefused)), next(iter(found), None)
    )
