"""The messages in flight: received, and neither acknowledged nor given back. Does no I/O, and reads no clock.

The messages of an ordering key form a lane. A failed message is given back after a delay, and Pub/Sub delivers it
again. Until then, the later messages of the lane wait here. Giving them back would count a failed delivery of each, and
the subscription's dead-letter policy could remove them.
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
"""How long a lane waits for its failed message to come again. After this time the lane continues without the message,
because Pub/Sub may have dead-lettered it.
"""
SHORTEST_DELAY_S: Final = 1.0
"""While more messages are delayed than `max_delayed`, delays are cut to this number of seconds."""


@dataclass(slots=True, eq=False)
class _Delayed:
    """A failed delivery, and when it is given back."""

    since: float
    until: float
    delivery: Delivery


@dataclass(slots=True, eq=False)
class _Lane:
    """The messages in flight of one ordering key, in order."""

    key: str
    deliveries: dict[Delivery, None] = field(default_factory=dict)
    awaited: str | None = None
    """The id of the failed message, which has to come again before the lane continues."""
    awaited_until: float = 0.0
    early: dict[Delivery, None] = field(default_factory=dict)
    """The messages that wait for the awaited message, in order."""

    @property
    def is_empty(self) -> bool:
        return not (self.deliveries or self.early) and self.awaited is None


class InFlight:
    """The messages of one stream.

    Delayed messages count against the bounds of the streaming pull, and at a bound Pub/Sub sends nothing. So once
    delayed messages use half of a bound, `wants_room` is true, and the session reopens the pull with larger bounds.

    Args:
        max_messages: The most messages in flight, until `make_room` adds room for delayed messages.
        max_bytes: The most bytes of messages in flight that are not delayed.
        max_delayed: While more messages are delayed, delays are cut to `SHORTEST_DELAY_S`.
    """

    def __init__(self, *, max_messages: int, max_bytes: int, max_delayed: int) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._max_delayed = max_delayed
        self._extra = 0
        """How many messages above `max_messages` the open stream may have in flight, because some are delayed."""
        self._extra_bytes = 0
        self._by_message: dict[str, Delivery] = {}
        self._lanes: dict[str, _Lane] = {}
        self._waiting: dict[str, _Lane] = {}
        """The lanes that wait for a failed message."""
        self._ready: deque[Delivery] = deque()
        self._paused: dict[str, list[Delivery]] = {}
        """The ready messages of each paused lane."""
        self._due: list[tuple[float, int, _Delayed]] = []
        self._due_number = 0
        self._bytes = 0
        self._delayed = 0
        self._delayed_bytes = 0

    def __len__(self) -> int:
        return len(self._by_message)

    def __iter__(self) -> Iterator[Delivery]:
        """Iterate in the order of receipt."""
        return iter(self._by_message.values())

    @property
    def is_full(self) -> bool:
        """Whether a bound is reached, so that nothing more may be received."""
        return (
            len(self._by_message) >= self._max_messages + self._extra
            or self._bytes - self._delayed_bytes >= self._max_bytes
        )

    @property
    def wants_room(self) -> bool:
        """Whether the stream must be opened again with larger bounds, as the class's docstring says."""
        return self._extra < self._max_delayed and (
            self._delayed > self._extra + self._max_messages // 2
            or self._delayed_bytes > self._extra_bytes + self._max_bytes // 2
        )

    def make_room(self) -> tuple[int, int]:
        """Fit the bounds to the delayed messages; return the new bounds, in messages and in bytes.

        The caller opens the streaming pull again with these bounds.
        """
        self._extra = min(2 * self._delayed, self._max_delayed)
        self._extra_bytes = 2 * self._delayed_bytes
        return self._max_messages + self._extra, self._max_bytes + self._extra_bytes

    def find(self, message_id: str) -> Delivery | None:
        return self._by_message.get(message_id)

    def add_all(self, deliveries: Iterable[Delivery]) -> list[tuple[Delivery, Delivery, str]]:
        """Add received messages.

        Returns: For each message that was in flight already: the existing delivery, which now has the new ack id; the
            new delivery, which is dropped; and the previous ack id.
        """
        # Not split into smaller functions, because this runs for every message.
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
                # `_make_ready`, inlined for speed. The state of a new delivery is READY already.
                ready.append(delivery)
        self._bytes += size
        return again

    def add(self, delivery: Delivery) -> Delivery | None:
        """Add one message; return its earlier delivery, or None if the message is new."""
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
        """End a lane's wait for its failed message. Make `deliveries` ready, and then the early messages."""
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
        """Return the next message to yield; None if none is ready."""
        return next(self.take_each(), None)

    def take_each(self) -> Iterator[Delivery]:
        """Yield the ready messages, in order."""
        ready, paused = self._ready, self._paused
        while ready:
            delivery = ready.popleft()
            if delivery.state is not READY:
                # Skip a message that was given back after it had become ready.
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
        """Mark a message whose acknowledgement is about to be sent."""
        delivery.state = State.SETTLING

    def remove_all(self, deliveries: Iterable[Delivery]) -> None:
        """Remove messages that were acknowledged or given back."""
        # Not split into smaller functions, because this runs for every message.
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
        """Remove a message that was acknowledged or given back."""
        self.remove_all([delivery])

    def _forget_if_empty(self, lane: _Lane) -> None:
        if lane.is_empty and self._lanes.get(lane.key) is lane:
            del self._lanes[lane.key]

    # Failures

    def fail(self, delivery: Delivery, now: float, delay_s: float) -> None:
        """Delay a failed message until `take_due` returns it, and hold back the later messages of its lane."""
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
        """Yield a message again, with the later messages of its lane, without giving it back to Pub/Sub.

        Returns: False if nothing is repeated: the lane waits for a failed message, or the message has left the lane.
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
        """Replace a delivery by a new delivery. Outcomes of the old delivery are ignored."""
        again = replace(delivery)
        delivery.state = State.GONE
        self._by_message[again.message_id] = again
        return again

    def next_at(self) -> float | None:
        """Return when `take_due` has something to do; None if nothing is delayed."""
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
        """Remove and return the messages whose delay is over, sorted by the end of the delay.

        If a lane's failed message has not come again in time, the lane continues without it.
        """
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
