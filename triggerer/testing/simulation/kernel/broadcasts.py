"""What was broadcast of each lane, by the numbers of deliveries, and what became of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from triggerer.testing.simulation.kernel.delivery import Delivery, Message

LaneOfSession = tuple[str, int, int]
"""Topic, session, and lane: numbers grow within."""


def lane_of(delivery: Delivery) -> LaneOfSession:
    """Where the number of a delivery counts."""
    return delivery.message.topic, delivery.consumer.number, delivery.message.lane


class Broadcasts:
    """Filled by the models of the broker."""

    def __init__(self) -> None:
        self._outstanding: dict[LaneOfSession, dict[int, Delivery]] = {}
        """What was broadcast, and is in no advance, by number."""
        self._last: dict[LaneOfSession, int] = {}
        """The number of what was broadcast last."""
        self._failed: dict[LaneOfSession, dict[int, float]] = {}
        """The numbers of what has failed, and of what had been broadcast last when the broker knew that."""
        self._failed_for_all: set[tuple[LaneOfSession, int]] = set()
        """Those of them with which more fails."""
        self._first_behind_failed: set[tuple[LaneOfSession, int]] = set()
        """The number of what was broadcast first since the broker knew of a failure."""
        self._held: dict[LaneOfSession, Delivery] = {}
        """What the poll has pulled and not broadcast."""
        self._done: dict[tuple[str, int], set[int]] = {}
        """By topic and lane the offsets of what everybody was done with that had to see it."""
        self._done_before: dict[tuple[int, str, int], frozenset[int]] = {}
        """By watcher, topic and lane: of these what was so when the watcher had to see something of the lane first."""

    def record_outstanding(self, delivery: Delivery) -> None:
        """It is about to be broadcast, or was."""
        if not delivery.is_broadcast:
            self._outstanding.setdefault(lane_of(delivery), {})[delivery.number] = delivery

    def mark_pulled(self, delivery: Delivery) -> None:
        """The poll has it."""
        self._held[lane_of(delivery)] = delivery

    def record_broadcast(self, delivery: Delivery) -> None:
        """It is given to the live filters."""
        at = lane_of(delivery)
        self._held.pop(at, None)
        if self._last.get(at, 0) in self._failed.get(at, {}).values():
            self._first_behind_failed.add((at, delivery.number))
        self._last[at] = delivery.number
        topic, lane = delivery.message.topic, delivery.message.lane
        for watcher in delivery.cohort:
            if (watcher, topic, lane) not in self._done_before:
                done = frozenset(self._done.get((topic, lane), ()))
                self._done_before[watcher, topic, lane] = done

    def mark_done(self, message: Message) -> None:
        """Everybody is done with it who had to see it."""
        self._done.setdefault((message.topic, message.lane), set()).add(message.offset)

    def was_done_before(self, watcher: int, message: Message) -> bool:
        """Whether that was so before the watcher had to see anything of its lane."""
        return message.offset in self._done_before.get((watcher, message.topic, message.lane), ())

    def mark_decided(self, delivery: Delivery) -> None:
        """It is in an advance."""
        self._outstanding.get(lane_of(delivery), {}).pop(delivery.number, None)

    def mark_failed(self, delivery: Delivery, *, for_all: bool) -> None:
        """It has failed. If `for_all`, what is outstanding behind it in its lane fails too, and what the poll holds."""
        at = lane_of(delivery)
        self._failed.setdefault(at, {})[delivery.number] = math.inf
        if for_all:
            self._failed_for_all.add((at, delivery.number))

    def mark_advanced(self, delivery: Delivery) -> None:
        """The advance that it was in has returned: if it has failed, the broker knows it."""
        at = lane_of(delivery)
        if delivery.number not in self._failed.get(at, {}):
            return
        self._failed[at][delivery.number] = self._last.get(at, 0)
        if (at, delivery.number) in self._failed_for_all and at in self._held:
            self._held[at].was_behind_failed = True

    def fails_too(self, delivery: Delivery) -> bool:
        """Whether one before it in its lane has failed for all while it was outstanding, or in the poll's hand.

        Of what is broadcast first since, the poll may have had it before the runtime knew that the broker knows.
        """
        at = lane_of(delivery)
        is_outstanding = any(
            number < delivery.number <= last and (at, number) in self._failed_for_all
            for number, last in self._failed.get(at, {}).items()
        )
        is_first = (at, delivery.number) in self._first_behind_failed
        return is_outstanding or is_first or delivery.was_behind_failed

    def may_come_again(self, delivery: Delivery) -> bool:
        """Whether one before it has failed, as far as its owner knows: the poll may have held it then.

        It does not know that the broker has given that up at the limit.
        """
        at, number = lane_of(delivery), delivery.number
        is_outstanding = any(
            failed < number <= last for failed, last in self._failed.get(at, {}).items()
        )
        return is_outstanding or (at, number) in self._first_behind_failed

    def outstanding_before(self, delivery: Delivery) -> Iterator[Delivery]:
        """What was broadcast before it in its lane, and is in no advance."""
        for number, earlier in self._outstanding.get(lane_of(delivery), {}).items():
            if number < delivery.number:
                yield earlier

    def last_of(self, topic: str, lane: int) -> Iterator[tuple[LaneOfSession, int]]:
        """By session the number of what was broadcast last of a lane."""
        for at, number in self._last.items():
            if (at[0], at[2]) == (topic, lane):
                yield at, number
