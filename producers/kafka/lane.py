"""One partition during one assignment: what is in flight, and what is committed.

Synchronous, without I/O. A lane object dies with its assignment; the messages that it delivered keep pointing at
it, so that an advance which comes too late is told from one that counts. `delivery` does the same within an
assignment: it grows with every step back, and messages of an earlier delivery count no more.
"""

from __future__ import annotations

import asyncio
import random

from aiokafka import TopicPartition

from producers.kafka.cluster import Membership
from producers.kafka.position import CommittedPosition


class Lane:
    """See the module."""

    __slots__ = (
        "closed",
        "committed",
        "delivered",
        "delivery",
        "draining",
        "key_prefix",
        "membership",
        "partition",
        "paused",
        "probing",
        "timer",
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
        """Deliver only the message at the position, and the others once it is through: what follows a message that
        fails again and again is not delivered as often as that one."""
        self.draining = False
        """The partition is about to go; deliver nothing more."""
        self.closed = False
        """The assignment is over; nothing counts any more."""
        self.paused = False
        """Too much of it is not advanced yet: deliver nothing more until it is resumed, or assigned anew."""
        self.timer: asyncio.TimerHandle | None = None
        """Set while the partition waits for its redelivery."""
        topic = committed.topic_id
        self.key_prefix = None if topic is None else f"{topic}/{partition.partition}/"

    @property
    def in_flight(self) -> bool:
        """Whether an advance is still expected."""
        return not self.closed and self.timer is None and self.committed.offset < self.delivered

    @property
    def may_deliver(self) -> bool:
        """Whether the consumer may hand over what follows, unless the whole stream is paused."""
        waits_for_probe = self.probing and self.in_flight
        return not self.paused and self.timer is None and not waits_for_probe

    @property
    def is_held(self) -> bool:
        """Whether a failed message holds the lane up."""
        return self.timer is not None or self.probing

    def step_back(self, position: CommittedPosition, *, probing: bool) -> None:
        """Everything delivered from `position` on counts no more; it is delivered again."""
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


def redelivery_delay(failures: int, *, first_s: float, longest_s: float) -> float:
    """Full jitter: somewhere between at once and a bound that doubles with every failure.

    Source: "Exponential backoff and jitter", AWS Architecture Blog, 2015.
    """
    bound = min(longest_s, first_s * 2 ** min(max(failures - 1, 0), 30))
    return random.uniform(0, bound)
