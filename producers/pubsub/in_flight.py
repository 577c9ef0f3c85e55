"""The messages in hand: received, and neither acknowledged nor given back. Synchronous, no I/O, no clock.

Messages of an ordering key form a lane. When one of them fails, it is held for a while and then given back; the service
delivers the key again from there. What came after it in the lane is held back here until it has come again: giving that
back too would count as a failed delivery of each, and a dead-letter policy would take the innocent with the guilty.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from producers.pubsub.message import GONE, OPEN, READY, Delivery, State

COMES_AGAIN_WITHIN_S: Final = 5.0
"""How long a lane waits for the message that failed. The service may have dead-lettered it: then it never comes."""
SHORTEST_DELAY_S: Final = 1.0
"""Also where more messages fail than may be held, they do not go back and forth without a pause."""


@dataclass(slots=True, eq=False)
class _Delayed:
    """A delivery that is given back at a time."""

    since: float
    until: float
    delivery: Delivery


@dataclass(slots=True, eq=False)
class _Lane:
    """What is in hand of one ordering key, in order."""

    key: str
    deliveries: dict[Delivery, None] = field(default_factory=dict)
    awaited: str | None = None
    """The id of the message that failed. It has to come again before anything else of the lane goes on."""
    awaited_until: float = 0.0
    early: dict[Delivery, None] = field(default_factory=dict)
    """What came after it, in order."""

    @property
    def is_empty(self) -> bool:
        return not (self.deliveries or self.early) and self.awaited is None


class InFlight:
    """What a stream holds.

    The service counts what failed and is held here against the stream's bounds, too. As many failing messages as there
    is room for would keep all others out. So where they take half of the room, a stream with more of it is needed; see
    `wants_room`.

    Args:
        max_messages: The bound of what is in hand and not held.
        max_bytes: Likewise, of their sizes.
        max_held: How many messages that failed may be held.
    """

    def __init__(self, *, max_messages: int, max_bytes: int, max_delayed: int) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._max_delayed = max_delayed
        self._extra = 0
        """For what is held, of the stream that is open."""
        self._extra_bytes = 0
        self._by_message: dict[str, Delivery] = {}
        self._lanes: dict[str, _Lane] = {}
        self._waiting: dict[str, _Lane] = {}
        """The lanes that wait for a message which failed."""
        self._ready: deque[Delivery] = deque()
        self._paused: dict[str, list[Delivery]] = {}
        """By paused lane, what would have been yielded."""
        self._due: list[tuple[float, int, _Delayed]] = []
        self._due_number = 0
        self._bytes = 0
        self._delayed = 0
        self._delayed_bytes = 0

    def __len__(self) -> int:
        return len(self._by_message)

    def __iter__(self) -> Iterator[Delivery]:
        """In the order in which they came."""
        return iter(self._by_message.values())

    @property
    def is_full(self) -> bool:
        """Whether nothing more is to be received."""
        return (
            len(self._by_message) >= self._max_messages + self._extra
            or self._bytes - self._delayed_bytes >= self._max_bytes
        )

    @property
    def wants_room(self) -> bool:
        """Whether what is held takes half of the room that the stream has for others."""
        return self._extra < self._max_delayed and (
            self._delayed > self._extra + self._max_messages // 2
            or self._delayed_bytes > self._extra_bytes + self._max_bytes // 2
        )

    def make_room(self) -> tuple[int, int]:
        """The bounds of a stream that is opened now, in messages and in bytes."""
        self._extra = min(2 * self._delayed, self._max_delayed)
        self._extra_bytes = 2 * self._delayed_bytes
        return self._max_messages + self._extra, self._max_bytes + self._extra_bytes

    def find(self, message_id: str) -> Delivery | None:
        return self._by_message.get(message_id)

    def add_all(self, deliveries: Iterable[Delivery]) -> list[tuple[Delivery, Delivery, str]]:
        """Take what has come.

        Returns: Of messages that were in hand already: the delivery that was, which has the newer ack id now; the newer
            one, which counts no more; and the former ack id.
        """
        # One function, since it runs for every message.
        by_message, ready = self._by_message, self._ready
        again: list[tuple[Delivery, Delivery, str]] = []
        size = 0
        for delivery in deliveries:
            known = by_message.setdefault(delivery.message_id, delivery)
            if known is not delivery:
                again.append((known, delivery, known.ack_id))
                known.ack_id = delivery.ack_id
                continue
            size += delivery.size
            if delivery.key:
                self._enter(self._lanes.setdefault(delivery.key, _Lane(delivery.key)), delivery)
            else:
                # As it is made; see `_make_ready`.
                ready.append(delivery)
        self._bytes += size
        return again

    def add(self, delivery: Delivery) -> Delivery | None:
        """See `add_all`; the delivery that was in hand of the same message, None if it is a new one."""
        again = self.add_all([delivery])
        return again[0][0] if again else None

    def _enter(self, lane: _Lane, delivery: Delivery) -> None:
        if lane.awaited is None:
            lane.deliveries[delivery] = None
            self._make_ready(delivery)
        elif lane.awaited == delivery.message_id:
            self._go_on(lane, [delivery])
        else:
            self._hold_back(lane, delivery)

    def _hold_back(self, lane: _Lane, delivery: Delivery) -> None:
        delivery.state = State.EARLY
        lane.early[delivery] = None
        self._count_delayed(delivery, 1)

    def _go_on(self, lane: _Lane, deliveries: list[Delivery]) -> None:
        """What was awaited is there, or will not come: these first, and then what was held back."""
        del self._waiting[lane.key]
        lane.awaited = None
        for delivery in lane.early:
            self._count_delayed(delivery, -1)
        deliveries += lane.early
        lane.early.clear()
        for delivery in deliveries:
            lane.deliveries[delivery] = None
            self._make_ready(delivery)
        self._forget_if_empty(lane)

    def _count_delayed(self, delivery: Delivery, sign: int) -> None:
        self._delayed += sign
        self._delayed_bytes += sign * delivery.size

    def _make_ready(self, delivery: Delivery) -> None:
        delivery.state = READY
        self._ready.append(delivery)

    def take(self) -> Delivery | None:
        """The next to be yielded; None: nothing is ready."""
        return next(self.take_each(), None)

    def take_each(self) -> Iterator[Delivery]:
        """What is to be yielded, one after the other, until nothing is ready."""
        ready, paused = self._ready, self._paused
        while ready:
            delivery = ready.popleft()
            if delivery.state is not READY:
                # Given back meanwhile.
                continue
            if paused and delivery.lane in paused:
                paused[delivery.lane].append(delivery)
                continue
            delivery.state = OPEN
            yield delivery

    def pause_lane(self, lane: str) -> None:
        self._paused.setdefault(lane, [])

    def resume_lane(self, lane: str) -> None:
        self._ready.extendleft(reversed(self._paused.pop(lane, [])))

    def settle(self, delivery: Delivery) -> None:
        """It is about to be acknowledged."""
        delivery.state = State.SETTLING

    def remove_all(self, deliveries: Iterable[Delivery]) -> None:
        """See `remove`."""
        # One function, since it runs for every message.
        by_message = self._by_message
        size = 0
        for delivery in deliveries:
            if by_message.get(delivery.message_id) is not delivery:
                continue
            delivery.state = GONE
            del by_message[delivery.message_id]
            size += delivery.size
            if delivery.key and (lane := self._lanes.get(delivery.key)) is not None:
                lane.deliveries.pop(delivery, None)
                self._forget_if_empty(lane)
        self._bytes -= size

    def remove(self, delivery: Delivery) -> None:
        """It was acknowledged, or comes again later as another delivery."""
        self.remove_all([delivery])

    def _forget_if_empty(self, lane: _Lane) -> None:
        if lane.is_empty and self._lanes.get(lane.key) is lane:
            del self._lanes[lane.key]

    # What fails

    def fail(self, delivery: Delivery, now: float, delay_s: float) -> None:
        """Hold it until `take_due` returns it to be given back, and hold back what came after it in its lane."""
        delivery.state = State.DELAYED
        self._count_delayed(delivery, 1)
        self._due_number += 1
        delayed = _Delayed(now, now + delay_s, delivery)
        heapq.heappush(self._due, (delayed.until, self._due_number, delayed))
        if not delivery.key:
            return
        lane = self._lanes[delivery.key]
        lane.awaited, lane.awaited_until = delivery.message_id, math.inf
        self._waiting[lane.key] = lane
        following = False
        for other in list(lane.deliveries):
            if other is delivery or following:
                del lane.deliveries[other]
            if following:
                self._hold_back(lane, self._renew(other))
            following = following or other is delivery

    def repeat(self, delivery: Delivery) -> bool:
        """Have it taken once more, with what came after it in its lane; the service learns nothing of it.

        Returns: Whether that is so; not where its lane waits for another message.
        """
        if not delivery.key:
            self._make_ready(self._renew(delivery))
            return True
        lane = self._lanes.get(delivery.key)
        if lane is None or lane.awaited is not None or delivery not in lane.deliveries:
            return False
        following = False
        for other in list(lane.deliveries):
            following = following or other is delivery
            if following:
                del lane.deliveries[other]
                again = self._renew(other)
                lane.deliveries[again] = None
                self._make_ready(again)
        return True

    def _renew(self, delivery: Delivery) -> Delivery:
        """Another delivery of the message; who has the one before does nothing more with it."""
        again = replace(delivery)
        delivery.state = State.GONE
        self._by_message[again.message_id] = again
        return again

    def next_at(self) -> float | None:
        """When `take_due` has something to do; None: not until something fails."""
        times = [lane.awaited_until for lane in self._waiting.values()]
        if self._due:
            times.append(self._first_ends_at())
        at = min(times, default=math.inf)
        return None if at == math.inf else at

    def _first_ends_at(self) -> float:
        until, _, delayed = self._due[0]
        return (
            min(until, delayed.since + SHORTEST_DELAY_S)
            if self._delayed > self._max_delayed
            else until
        )

    def take_due(self, now: float) -> list[Delivery]:
        """What is to be given back now, in order; it leaves the hand. Lanes that waited for too long go on."""
        due: list[Delivery] = []
        while self._due and self._first_ends_at() <= now:
            _, _, delayed = heapq.heappop(self._due)
            delivery = delayed.delivery
            self._count_delayed(delivery, -1)
            if delivery.key:
                self._lanes[delivery.key].awaited_until = now + COMES_AGAIN_WITHIN_S
            self.remove(delivery)
            due.append(delivery)
        for lane in [one for one in self._waiting.values() if one.awaited_until <= now]:
            self._go_on(lane, [])
        return due
