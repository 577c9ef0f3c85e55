"""Decides how far a resolved batch advances its lane. Synchronous, without I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from producers.kafka.in_flight import LaneInFlight
from producers.kafka.message import KafkaMessage
from triggerer.abc import AdvanceItem, AdvanceOutcome
from triggerer.pluginkit.delivery import Judgement
from triggerer.pluginkit.delivery import judge as judge_outcome

# Look these members up once, because `judge` runs for each message.
_FAIL: Final = Judgement.FAIL
_REJECT: Final = Judgement.REJECT


@dataclass(frozen=True, slots=True)
class Verdict:
    """How far a batch advances its lane.

    Attributes:
        lane: The lane to advance; None if all messages are stale.
        delivery: The lane's `delivery` when the batch was judged.
        offset: Where the lane continues: all earlier messages are done.
        failed: The message at `offset` that stops the lane, with its outcome; None if there is none.
        rest: The items after the failed message.
        stale: The number of messages of an earlier assignment or delivery.
        rejected: The messages before `offset` that a subscriber rejected, with their outcomes.
    """

    lane: LaneInFlight | None
    delivery: int
    offset: int
    failed: tuple[KafkaMessage, AdvanceOutcome] | None
    rest: Sequence[AdvanceItem]
    stale: int
    rejected: Sequence[tuple[KafkaMessage, AdvanceOutcome]]

    @property
    def is_outdated(self) -> bool:
        """True if the lane was closed or rewound after the batch was judged, so that its messages are stale now."""
        lane = self.lane
        return lane is not None and (lane.closed or lane.delivery != self.delivery)


def judge(batch: Sequence[AdvanceItem]) -> Verdict:
    """Judge a lane's next items, in order, up to the first that failed.

    - A message that no subscriber received counts as failed (rule 5).
    - A message that some subscribers rejected and none failed does not stop the lane. `rejected` contains the message,
      for the dead-letter topic.
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
            # Nearly all messages have the same outcome object as the message before, so judge it only once.
            judged, judgement = outcome, judge_outcome(outcome)
        if judgement is _FAIL:
            rest = batch[index + 1 :]
            return Verdict(
                lane, lane.delivery, message.offset, (message, outcome), rest, stale, rejected
            )
        if judgement is _REJECT:
            rejected.append((message, outcome))
        current, last = lane, message
    if current is None or last is None:
        return Verdict(None, 0, -1, None, (), stale, rejected)
    return Verdict(current, current.delivery, last.offset + 1, None, (), stale, rejected)
