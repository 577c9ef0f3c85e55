"""The messages in flight of one partition during one assignment, and the partition's committed position.

Synchronous, without I/O. Each assignment of a partition creates a lane (`LaneInFlight`), and each message refers to its
lane. `advance` ignores stale messages. A message is stale in two cases:

- Its lane is closed, because the assignment has ended.
- It was delivered before the lane's last rewind, so its `delivery` number is lower than the lane's.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

from aiokafka import TopicPartition

from producers.kafka.positions.leader_epochs import LeaderEpochs
from producers.kafka.positions.position import CommittedPosition, CutTopic, UsedOffsets
from producers.kafka.wire.cluster import Membership
from producers.kafka.wire.fetch_request import DivergingEpoch

_READ_BEFORE: Final = 100_000
"""How many offsets after the last fetched message may have been used before a cut.

A cut is the loss of the log's end; new messages get the lost offsets again. An earlier owner of the partition may have
read further than this process, and created events from messages that are lost now. So new messages at these offsets
also get other idempotency keys. The number is ten times the default of `max_outstanding_events_per_lane`.
"""
_CUTS: Final = 8
"""The most cuts that are remembered, because the metadata of a commit has a limited size."""


class LaneInFlight:
    """The state of one assigned partition, until the partition is revoked or the stream ends."""

    __slots__ = (
        "closed",
        "committed",
        "delivered",
        "delivery",
        "draining",
        "epochs",
        "incarnation",
        "key_prefix",
        "membership",
        "partition",
        "paused",
        "reported_cut",
        "retries_alone",
        "timer",
        "used",
    )

    def __init__(
        self,
        partition: TopicPartition,
        membership: Membership,
        committed: CommittedPosition,
    ) -> None:
        self.partition = partition
        self.membership = membership
        self.committed = committed
        self.delivered = committed.offset
        """The offset after the last message delivered."""
        self.delivery = 0
        self.retries_alone = committed.failures > 1
        """True: deliver only the message at the committed position, because it has failed twice or more.

        The later messages wait until that message is advanced. Otherwise each failure of that message would redeliver
        the later messages too.
        """
        self.draining = False
        """True while the partition is being revoked: deliver no further message."""
        self.closed = False
        """True once the assignment has ended: all its messages are stale."""
        self.paused = False
        """True if too many of the partition's messages are outstanding: deliver nothing until the lane is resumed or
        assigned again.
        """
        self.timer: asyncio.TimerHandle | None = None
        """Runs while the partition waits for a redelivery."""
        topic = committed.topic_id
        self.key_prefix = (
            None if topic is None else f"{partition.topic}@{topic}/{partition.partition}/"
        )
        self.epochs = LeaderEpochs(committed.offset, committed.epoch)
        self.reported_cut: DivergingEpoch | None = None
        """The cut that a broker has reported, until `Assignment` handles the report. None: there is no report."""
        self.used = committed.used
        """The offsets that the log uses again after a cut."""
        self.incarnation = CutTopic(topic, self.used) if topic and self.used else topic
        """The first part of each message's position."""

    @property
    def in_flight(self) -> bool:
        """True if a delivered message is not advanced yet. False while the lane waits for a redelivery."""
        return not self.closed and self.timer is None and self.committed.offset < self.delivered

    @property
    def may_deliver(self) -> bool:
        """True if further messages may be delivered. The whole stream may be paused nevertheless."""
        waits_for_retry = self.retries_alone and self.in_flight
        return not self.paused and self.timer is None and not waits_for_retry

    @property
    def is_blocked(self) -> bool:
        """Whether the lane waits for a failed message."""
        return self.timer is not None or self.retries_alone

    def position(self, offset: int, failures: int = 0) -> CommittedPosition:
        """Return the position to commit so that the message at `offset` is delivered next."""
        return self.committed.moved(offset, failures, epoch=self.epochs.before(offset))

    def key(self, offset: int) -> str | None:
        """Return the idempotency key of the message at `offset`; None if the brokers have no topic ids.

        A key is `<topic>@<topic id>/<partition>/<offset>`, for example `orders@<topic id>/0/7`. After a cut, a new
        message can get the offset of a lost message. The new message's key then ends with the leader epoch of the lost
        message, for example `orders@<topic id>/0/7+3`; see `UsedOffsets`.
        """
        prefix = self.key_prefix
        if prefix is None:
            return None
        if self.used:
            for part in reversed(self.used):
                if part.since <= offset < part.below:
                    return f"{prefix}{offset}+{part.epoch}"
        return f"{prefix}{offset}"

    def after_cut(self, cut: DivergingEpoch, fetched_to: int, begin: int) -> LaneInFlight:
        """Return a new lane, which reads the messages that were written since the cut.

        The new lane begins at the cut, or at an earlier message that is still in flight. The old lane's `used` does not
        change, so the messages that it has delivered keep their idempotency keys.

        Args:
            fetched_to: The offset up to which the client has fetched. It may lie beyond the last delivered message.
            begin: The log's first offset.
        """
        epoch = self.epochs.before(fetched_to)
        # The epoch is known, because the broker reports a cut only in answer to a fetch that contains the epoch.
        assert epoch is not None
        self.epochs.cut(cut.epoch)
        since = max(min(cut.end_offset, self.delivered), begin)
        below = max(fetched_to, self.delivered) + _READ_BEFORE
        before = self.committed
        offset, failures = (
            (before.offset, before.failures) if begin <= before.offset < since else (since, 0)
        )
        used = (*before.used, UsedOffsets(since, below, epoch))[-_CUTS:]
        position = replace(self.position(offset, failures), used=used)
        lane = LaneInFlight(self.partition, self.membership, position)
        lane.epochs, lane.paused = self.epochs, self.paused
        return lane

    def step_back(self, position: CommittedPosition, *, retries_alone: bool) -> None:
        """Rewind to `position`. Later messages that were delivered are stale, and are delivered again."""
        self.committed = position
        self.delivered = position.offset
        self.delivery += 1
        self.retries_alone = retries_alone

    def close(self) -> None:
        """End the assignment: all messages of the lane are stale."""
        self.closed = True
        self.stop_timer()

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
