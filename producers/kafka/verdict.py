"""What a resolved batch means for the broker. Synchronous, without I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from producers.kafka.lane import Lane
from producers.kafka.message import KafkaMessage
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
