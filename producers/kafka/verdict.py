"""What a resolved batch means for the broker. Synchronous, without I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from producers.kafka.in_flight import LaneInFlight
from producers.kafka.message import KafkaMessage
from triggerer.abc import AdvanceItem, AdvanceOutcome
from triggerer.pluginkit.delivery import Judgement
from triggerer.pluginkit.delivery import judge as judge_outcome

# Enumerations find a member by a Python function, and this is asked of each message.
_FAIL: Final = Judgement.FAIL
_REJECT: Final = Judgement.REJECT


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a batch means for the broker.

    Attributes:
        lane: The lane to advance; None if all messages are stale.
        offset: Where the lane continues: all messages before it are done.
        failed: The message at `offset` that stops the lane, with its outcome; None if there is none.
        rest: The items after the failed message.
        stale: The number of messages of an earlier assignment or delivery.
        rejected: The messages before `offset` that a subscriber rejected, with their outcomes.
    """

    lane: LaneInFlight | None
    offset: int
    failed: tuple[KafkaMessage, AdvanceOutcome] | None
    rest: Sequence[AdvanceItem]
    stale: int
    rejected: Sequence[tuple[KafkaMessage, AdvanceOutcome]]


def judge(batch: Sequence[AdvanceItem]) -> Verdict:
    """Judge a lane's next contiguous items, up to the first that failed.

    An item that no subscriber saw stops the lane like a failed one (rule 5). One that was rejected, and that nobody
    failed, is passed once it is dead-lettered or set aside.
    """
    current: LaneInFlight | None = None
    last: KafkaMessage | None = None
    stale = 0
    rejected: list[tuple[KafkaMessage, AdvanceOutcome]] = []
    judged: AdvanceOutcome | None = None
    judgement = _FAIL
    for index, (message, outcome) in enumerate(batch):
        lane = message.lane
        if lane.closed or message.delivery != lane.delivery:
            stale += 1
            continue
        if outcome is not judged:
            # Nearly always it is the same as that of the message before.
            judged, judgement = outcome, judge_outcome(outcome)
        if judgement is _FAIL:
            return Verdict(
                lane, message.offset, (message, outcome), batch[index + 1 :], stale, rejected
            )
        if judgement is _REJECT:
            rejected.append((message, outcome))
        current, last = lane, message
    return Verdict(current, -1 if last is None else last.offset + 1, None, (), stale, rejected)
