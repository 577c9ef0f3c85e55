"""One partition during one assignment: what is in flight, what is committed, and what a resolved batch means.

Synchronous, without I/O. A lane belongs to one assignment. Its messages refer to it, so that an advance which comes
after the end of the assignment is recognised. Within an assignment `delivery` serves the same purpose: it grows with
every rewind, and messages of an earlier delivery are ignored.
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
        lane: The lane to advance; None if all messages are stale.
        offset: Where the lane continues: all messages before it are done.
        failed: The message at `offset` that stops the lane, with its outcome; None if there is none.
        rest: The items after the failed message.
        stale: The number of messages of an earlier assignment or delivery.
        rejected: The messages that are passed because a subscriber rejected them.
    """

    lane: Lane | None
    offset: int
    failed: tuple[KafkaMessage, AdvanceOutcome] | None
    rest: Sequence[AdvanceItem]
    stale: int
    rejected: Sequence[KafkaMessage]


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

    def counts(self, message: KafkaMessage) -> bool:
        return not self.closed and message.delivery == self.delivery

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


def judge(batch: Sequence[AdvanceItem]) -> Verdict:
    """Judge a lane's next contiguous items, up to the first that failed.

    An item that no subscriber saw stops the lane like a failed one (rule 5). One that was rejected, and that nobody
    failed, is passed.
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
    """Return a delay with full jitter: between zero and a bound that doubles with every failure.

    Source: "Exponential backoff and jitter", AWS Architecture Blog, 2015.
    """
    bound = min(longest_s, first_s * 2 ** min(max(failures - 1, 0), 30))
    return random.uniform(0, bound)
