"""Records the broadcasts of each lane: which deliveries are outstanding, failed or done."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from triggerer.testing.simulation.kernel.delivery import Delivery, Message

LaneOfSession = tuple[str, int, int]
"""Topic, session and lane. Delivery numbers can be compared only within a lane of one session."""


def lane_of(delivery: Delivery) -> LaneOfSession:
    """Return the topic, session and lane of a delivery."""
    return delivery.message.topic, delivery.consumer.number, delivery.message.lane


class Broadcasts:
    """The broadcasts of one simulated run. The models of the brokers record broadcasts, and checkers look them up."""

    def __init__(self) -> None:
        self._outstanding: dict[LaneOfSession, dict[int, Delivery]] = {}
        """Deliveries that were broadcast and are in no advance yet, by delivery number."""
        self._last: dict[LaneOfSession, int] = {}
        """The number of the last broadcast."""
        self._failed: dict[LaneOfSession, dict[int, float]] = {}
        """By number of a failed delivery: the number of the last broadcast when the broker learned of the failure.

        Until then the value is infinity.
        """
        self._failed_for_all: set[tuple[LaneOfSession, int]] = set()
        """The failed deliveries whose successors in the lane fail too."""
        self._first_behind_failed: set[tuple[LaneOfSession, int]] = set()
        """The first broadcasts after the broker learned of a failure, each by its lane and delivery number."""
        self._pulled: dict[LaneOfSession, Delivery] = {}
        """The delivery of each lane that the poll has pulled and not yet broadcast."""
        self._done: dict[tuple[str, int], set[int]] = {}
        """By topic and lane: the offsets of the messages that are done for all watchers that must resolve them."""
        self._done_before: dict[tuple[int, str, int], frozenset[int]] = {}
        """By watcher, topic and lane: the value of `_done` at the first broadcast that the watcher had to resolve."""

    def record_outstanding(self, delivery: Delivery) -> None:
        """Record a delivery that is about to be broadcast."""
        if not delivery.is_broadcast:
            self._outstanding.setdefault(lane_of(delivery), {})[delivery.number] = delivery

    def mark_pulled(self, delivery: Delivery) -> None:
        """Record that the poll has pulled a delivery."""
        self._pulled[lane_of(delivery)] = delivery

    def record_broadcast(self, delivery: Delivery) -> None:
        """Record that a delivery was broadcast to the live filters."""
        at = lane_of(delivery)
        self._pulled.pop(at, None)
        if self._last.get(at, 0) in self._failed.get(at, {}).values():
            self._first_behind_failed.add((at, delivery.number))
        self._last[at] = delivery.number
        topic, lane = delivery.message.topic, delivery.message.lane
        for watcher in delivery.cohort:
            if (watcher, topic, lane) not in self._done_before:
                done = frozenset(self._done.get((topic, lane), ()))
                self._done_before[watcher, topic, lane] = done

    def mark_done(self, message: Message) -> None:
        """Record that all watchers of the cohort are done with a message."""
        self._done.setdefault((message.topic, message.lane), set()).add(message.offset)

    def was_done_before(self, watcher: int, message: Message) -> bool:
        """Whether a message was done before the watcher had to resolve any message of its lane."""
        return message.offset in self._done_before.get((watcher, message.topic, message.lane), ())

    def mark_decided(self, delivery: Delivery) -> None:
        """Record that a delivery is in an advance."""
        self._outstanding.get(lane_of(delivery), {}).pop(delivery.number, None)

    def mark_failed(self, delivery: Delivery, *, for_all: bool) -> None:
        """Record a failure.

        Args:
            for_all: True if the message failed for all watchers. Then the later messages of the lane that are
                outstanding or pulled fail too.
        """
        at = lane_of(delivery)
        self._failed.setdefault(at, {})[delivery.number] = math.inf
        if for_all:
            self._failed_for_all.add((at, delivery.number))

    def mark_advanced(self, delivery: Delivery) -> None:
        """Record that the advance with a delivery has returned. Now the broker knows whether the delivery failed."""
        at = lane_of(delivery)
        if delivery.number not in self._failed.get(at, {}):
            return
        self._failed[at][delivery.number] = self._last.get(at, 0)
        if (at, delivery.number) in self._failed_for_all and at in self._pulled:
            self._pulled[at].was_behind_failed = True

    def fails_too(self, delivery: Delivery) -> bool:
        """Whether this message fails too, because an earlier message of the lane failed for all watchers.

        A message fails too if it was outstanding or pulled when the failed message's advance returned. The first
        message that is broadcast afterwards may fail too, because it may have been pulled before the advance returned.
        """
        at = lane_of(delivery)
        is_outstanding = any(
            number < delivery.number <= last and (at, number) in self._failed_for_all
            for number, last in self._failed.get(at, {}).items()
        )
        is_first = (at, delivery.number) in self._first_behind_failed
        return is_outstanding or is_first or delivery.was_behind_failed

    def may_come_again(self, delivery: Delivery) -> bool:
        """Whether this message may be redelivered, because an earlier message of the lane has failed.

        The owner does not know whether the broker redelivers or dead-letters the failed message.
        """
        at, number = lane_of(delivery), delivery.number
        is_outstanding = any(
            failed < number <= last for failed, last in self._failed.get(at, {}).items()
        )
        return is_outstanding or (at, number) in self._first_behind_failed

    def outstanding_before(self, delivery: Delivery) -> Iterator[Delivery]:
        """Yield earlier deliveries of the lane that are in no advance yet."""
        for number, earlier in self._outstanding.get(lane_of(delivery), {}).items():
            if number < delivery.number:
                yield earlier

    def last_of(self, topic: str, lane: int) -> Iterator[tuple[LaneOfSession, int]]:
        """Yield the number of the last broadcast of a lane, for each session."""
        for at, number in self._last.items():
            if (at[0], at[2]) == (topic, lane):
                yield at, number
