"""One partition during one assignment: what is in flight, and what is committed.

Synchronous, without I/O. A lane belongs to one assignment. Its messages refer to it, so that an advance which comes
after the end of the assignment is recognised. Within an assignment `delivery` serves the same purpose: it grows with
every rewind, and messages of an earlier delivery are ignored.
"""

from __future__ import annotations

import asyncio
import random

from aiokafka import TopicPartition

from producers.kafka.cluster import Membership
from producers.kafka.position import CommittedPosition


class Lane:
    """See the module's docstring."""

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
    def is_held(self) -> bool:
        """Whether a failed message holds up the lane."""
        return self.timer is not None or self.probing

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


def redelivery_delay(failures: int, *, first_s: float, longest_s: float) -> float:
    """Return a delay with full jitter: between zero and a bound that doubles with every failure.

    Source: "Exponential backoff and jitter", AWS Architecture Blog, 2015.
    """
    bound = min(longest_s, first_s * 2 ** min(max(failures - 1, 0), 30))
    return random.uniform(0, bound)
