"""The messages in hand: received, and neither acknowledged nor given back. Synchronous, no I/O, no clock.

Messages of an ordering key form a lane. When one of them fails, it and all that came after it in the lane are held for
a while and then given back together; the service delivers the key again from there. What was on its way meanwhile is
held back until the one that failed has come again.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from producers.pubsub.message import Delivery, State

COMES_AGAIN_WITHIN_S: Final = 5.0
"""How long a lane waits for the message that failed. The service may have dead-lettered it: then it never comes."""


@dataclass(slots=True, eq=False)
class _Hold:
    """Deliveries that are given back at a time."""

    until: float
    deliveries: list[Delivery]
    lane: _Lane | None


@dataclass(slots=True, eq=False)
class _Lane:
    """What is in hand of one ordering key, in order."""

    key: str
    deliveries: dict[Delivery, None] = field(default_factory=dict)
    hold: _Hold | None = None
    awaited: str | None = None
    """The id of the message that has to come first."""
    awaited_until: float = 0.0
    early: dict[Delivery, None] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not (self.deliveries or self.hold or self.early) and self.awaited is None


class Hand:
    """What a stream holds.

    Args:
        max_messages: At this number `is_full`.
        max_bytes: Likewise, of their sizes.
    """

    def __init__(self, *, max_messages: int, max_bytes: int) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        # As many failing messages as there is room for must not keep all others out.
        self._max_held = max(max_messages // 2, 1)
        self._max_held_bytes = max(max_bytes // 2, 1)
        self._by_message: dict[str, Delivery] = {}
        self._lanes: dict[str, _Lane] = {}
        self._waiting: dict[str, _Lane] = {}
        """The lanes that wait for a message which failed."""
        self._ready: deque[Delivery] = deque()
        self._paused: dict[str, list[Delivery]] = {}
        """By paused lane, what would have been yielded."""
        self._holds: list[tuple[float, int, _Hold]] = []
        self._hold_number = 0
        self._bytes = 0
        self._held = 0
        self._held_bytes = 0

    def __len__(self) -> int:
        return len(self._by_message)

    def __iter__(self) -> Iterator[Delivery]:
        """In the order in which they came."""
        return iter(self._by_message.values())

    @property
    def is_full(self) -> bool:
        return len(self._by_message) >= self._max_messages or self._bytes >= self._max_bytes

    def find(self, message_id: str) -> Delivery | None:
        return self._by_message.get(message_id)

    def add(self, delivery: Delivery) -> Delivery | None:
        """Take what has come; the delivery that was in hand of the same message, which has the newer ack id now.

        None: it is a new one.
        """
        known = self._by_message.get(delivery.message_id)
        if known is not None:
            known.ack_id, known.attempt = delivery.ack_id, delivery.attempt
            if known.state is State.EARLY:
                self._lanes[known.key].early.pop(known)
                self._enter(known)
            return known
        self._by_message[delivery.message_id] = delivery
        self._bytes += delivery.size
        self._enter(delivery)
        return None

    def _enter(self, delivery: Delivery) -> None:
        if not delivery.key:
            self._make_ready(delivery)
            return
        lane = self._lanes.setdefault(delivery.key, _Lane(delivery.key))
        if lane.hold is not None:
            self._put_into(lane.hold, delivery)
            return
        if lane.awaited == delivery.message_id:
            lane.awaited = None
        if lane.awaited is not None:
            delivery.state = State.EARLY
            lane.early[delivery] = None
            return
        lane.deliveries[delivery] = None
        self._make_ready(delivery)

    def _make_ready(self, delivery: Delivery) -> None:
        delivery.state = State.READY
        self._ready.append(delivery)

    def take(self) -> Delivery | None:
        """The next to be yielded; None: nothing is ready."""
        while self._ready:
            delivery = self._ready.popleft()
            if delivery.state is not State.READY:
                # Given back meanwhile.
                continue
            if delivery.lane in self._paused:
                self._paused[delivery.lane].append(delivery)
                continue
            delivery.state = State.OPEN
            return delivery
        return None

    def pause_lane(self, lane: str) -> None:
        self._paused.setdefault(lane, [])

    def resume_lane(self, lane: str) -> None:
        self._ready.extendleft(reversed(self._paused.pop(lane, [])))

    def settle(self, delivery: Delivery) -> None:
        """It is about to be acknowledged."""
        delivery.state = State.SETTLING

    def remove(self, delivery: Delivery) -> None:
        """It was acknowledged, or comes again later as another delivery."""
        if self._by_message.get(delivery.message_id) is not delivery:
            return
        delivery.state = State.GONE
        del self._by_message[delivery.message_id]
        self._bytes -= delivery.size
        lane = self._lanes.get(delivery.key)
        if delivery.key and lane is not None:
            lane.deliveries.pop(delivery, None)
            lane.early.pop(delivery, None)
            self._forget_if_empty(lane)

    def _forget_if_empty(self, lane: _Lane) -> None:
        if lane.is_empty and self._lanes.get(lane.key) is lane:
            del self._lanes[lane.key]

    # What fails

    def fail(self, delivery: Delivery, until: float) -> None:
        """Hold it, and what came after it in its lane, until then; `take_due` returns them to be given back."""
        if not delivery.key:
            hold = self._new_hold(until, None)
            self._put_into(hold, delivery)
            return
        lane = self._lanes[delivery.key]
        lane.hold = hold = self._new_hold(until, lane)
        following = False
        for other in list(lane.deliveries):
            following = following or other is delivery
            if following:
                del lane.deliveries[other]
                self._put_into(hold, other)

    def _new_hold(self, until: float, lane: _Lane | None) -> _Hold:
        hold = _Hold(until, [], lane)
        self._hold_number += 1
        heapq.heappush(self._holds, (until, self._hold_number, hold))
        return hold

    def _put_into(self, hold: _Hold, delivery: Delivery) -> None:
        delivery.state = State.HELD
        hold.deliveries.append(delivery)
        self._held += 1
        self._held_bytes += delivery.size

    def next_at(self) -> float | None:
        """When `take_due` has something to do; None: not until something fails."""
        times = [lane.awaited_until for lane in self._waiting.values()]
        if self._holds:
            times.append(0.0 if self._holds_too_much else self._holds[0][0])
        return min(times, default=None)

    @property
    def _holds_too_much(self) -> bool:
        return self._held > self._max_held or self._held_bytes > self._max_held_bytes

    def take_due(self, now: float) -> list[Delivery]:
        """What is to be given back now, in order; it leaves the hand. Lanes that waited for too long go on."""
        due: list[Delivery] = []
        while self._holds and (self._holds[0][0] <= now or self._holds_too_much):
            _, _, hold = heapq.heappop(self._holds)
            self._held -= len(hold.deliveries)
            self._held_bytes -= sum(delivery.size for delivery in hold.deliveries)
            lane = hold.lane
            if lane is not None:
                lane.hold = None
                lane.awaited = hold.deliveries[0].message_id
                lane.awaited_until = now + COMES_AGAIN_WITHIN_S
                self._waiting[lane.key] = lane
            due += hold.deliveries
        for delivery in due:
            self.remove(delivery)
        for lane in [one for one in self._waiting.values() if one.awaited_until <= now]:
            self._stop_waiting(lane)
        return due

    def _stop_waiting(self, lane: _Lane) -> None:
        del self._waiting[lane.key]
        lane.awaited = None
        early = list(lane.early)
        lane.early.clear()
        for delivery in early:
            self._enter(delivery)
        self._forget_if_empty(lane)
