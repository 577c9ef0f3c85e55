"""One partition during one assignment: what is in flight, what is committed, and what a resolved batch means.

Synchronous, without I/O. A lane object dies with its assignment; the messages that it delivered keep pointing at
it, so that an advance which comes too late is told from one that counts. `delivery` does the same within an
assignment: it grows with every step back, and messages of an earlier delivery count no more.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass

from aiokafka import TopicPartition

from producers.kafka.cluster import Membership
from producers.kafka.message import KafkaMessage
from producers.kafka.position import CommittedPosition
from triggerer.abc import AdvanceItem, AdvanceOutcome


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a batch means for the broker.

    Attributes:
        lane: The lane that the batch still counts for; None: nothing in it counts any more.
        offset: Everything before it is done with.
        failed: The message at `offset` if it stops the lane, with its outcome.
        rest: What follows the failed message in the batch.
        stale: How many messages belonged to an earlier assignment or delivery.
        rejected: The messages passed over because somebody rejected them.
    """

    lane: Lane | None
    offset: int
    failed: tuple[KafkaMessage, AdvanceOutcome] | None
    rest: Sequence[AdvanceItem]
    stale: int
    rejected: Sequence[KafkaMessage]


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

    def counts(self, message: KafkaMessage) -> bool:
        return not self.closed and message.delivery == self.delivery

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


def judge(batch: Sequence[AdvanceItem]) -> Verdict:
    """Read a lane's next contiguous items up to the first that failed.

    An item that nobody was there to see is held like a failed one (contract, rule 5); one that somebody rejected and
    nobody failed is passed.
    """
    current: Lane | None = None
    offset = -1
    stale = 0
    rejected: list[KafkaMessage] = []
    for index, (message, outcome) in enumerate(batch):
        lane = message.lane
        if lane.closed or message.delivery != lane.delivery:
            stale += 1
            continue
        if outcome.failed or not (outcome.acked or outcome.rejected):
            return Verdict(
                lane, message.record.offset, (message, outcome), batch[index + 1 :], stale, rejected
            )
        if outcome.rejected:
            rejected.append(message)
        current = lane
        offset = message.record.offset + 1
    return Verdict(current, offset, None, (), stale, rejected)


def redelivery_delay(failures: int, *, first_s: float, longest_s: float) -> float:
    """Full jitter: somewhere between at once and a bound that doubles with every failure.

    Source: "Exponential backoff and jitter", AWS Architecture Blog, 2015.
    """
    bound = min(longest_s, first_s * 2 ** min(max(failures - 1, 0), 30))
    return random.uniform(0, bound)
