"""One partition during one assignment: what is in flight, and what is committed.

Synchronous, without I/O. A lane belongs to one assignment. Its messages refer to it, so that an advance which comes
after the end of the assignment is recognised. Within an assignment `delivery` serves the same purpose: it grows with
every rewind, and messages of an earlier delivery are ignored.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

from aiokafka import TopicPartition

from producers.kafka.positions.leader_epochs import LeaderEpochs
from producers.kafka.positions.position import CommittedPosition, CutTopic, UsedOffsets
from producers.kafka.wire.cluster import Membership
from producers.kafka.wire.fetch_request import Divergence

_READ_BEFORE: Final = 100_000
"""An owner before may have read so much beyond what it had committed: more than may be outstanding."""
_CUTS: Final = 8
"""Cuts that are remembered at a time, since a commit's metadata is bounded."""


class LaneInFlight:
    """See the module's docstring."""

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
        "parted",
        "partition",
        "paused",
        "probing",
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
        self.probing = committed.failures > 1
        """Deliver only the message at the position, and the others after it is advanced: they are not to be redelivered
        as often as a message that fails again and again."""
        self.draining = False
        """The partition is being revoked; deliver nothing more."""
        self.closed = False
        """The assignment is over; all its messages are stale."""
        self.paused = False
        """Too many of its messages are outstanding: deliver nothing more until it is resumed, or assigned again."""
        self.timer: asyncio.TimerHandle | None = None
        """Set while the partition waits for a redelivery."""
        topic = committed.topic_id
        self.key_prefix = None if topic is None else f"{topic}/{partition.partition}/"
        self.epochs = LeaderEpochs(committed.offset, committed.epoch)
        self.parted: Divergence | None = None
        """Where the broker's log parts from what was read: it was cut. Set until another lane takes over."""
        self.used = committed.used
        """Offsets that are used again since a cut."""
        self.incarnation = CutTopic(topic, self.used) if topic and self.used else topic
        """Of its messages' positions."""

    @property
    def in_flight(self) -> bool:
        """Whether an advance is still expected."""
        return not self.closed and self.timer is None and self.committed.offset < self.delivered

    @property
    def may_deliver(self) -> bool:
        """Whether more may be delivered, unless the whole stream is paused."""
        waits_for_probe = self.probing and self.in_flight
        return not self.paused and self.timer is None and not waits_for_probe

    @property
    def is_blocked(self) -> bool:
        """Whether a failed message holds up the lane."""
        return self.timer is not None or self.probing

    def position(self, offset: int, failures: int = 0) -> CommittedPosition:
        """Return the position before the message at `offset`, to be committed."""
        return self.committed.moved(offset, failures, epoch=self.epochs.before(offset))

    def key(self, offset: int) -> str | None:
        """Return the key of a message; None where brokers have no topic ids.

        `<topic id>/<partition>/<offset>`, and `<topic id>/<partition>/<offset>+<epoch>` in what was written again after
        a cut: the keys of all others stay as they are, also after an upgrade.
        """
        prefix = self.key_prefix
        if prefix is None:
            return None
        if self.used:
            for part in reversed(self.used):
                if part.since <= offset < part.below:
                    return f"{prefix}{offset}+{part.epoch}"
        return f"{prefix}{offset}"

    def after_cut(self, parted: Divergence, fetched_to: int, begin: int) -> LaneInFlight:
        """Return the lane that takes this one's place when the log was cut: what it has from the cut on was not read.

        It begins at the cut, unless a message before that is still in flight. Another lane, since what this one has
        delivered keeps its keys.

        Args:
            fetched_to: The offset at which the client fetched, which may be after what was delivered.
            begin: The log's first offset.
        """
        epoch = self.epochs.before(fetched_to)
        assert epoch is not None  # a broker compares only what it was told
        self.epochs.cut(parted.epoch)
        since = max(min(parted.end_offset, self.delivered), begin)
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

    def step_back(self, position: CommittedPosition, *, probing: bool) -> None:
        """Rewind to `position`: what was delivered from there on is stale, and is delivered again."""
        self.committed = position
        self.delivered = position.offset
        self.delivery += 1
        self.probing = probing

    def close(self) -> None:
        """The assignment is over."""
        self.closed = True
        self.stop_timer()

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
